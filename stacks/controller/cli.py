"""The `tidemill controller` command: this file reads options and signals; the other files of the room do the work."""

import argparse
import os
import re
import signal
import socket
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from planner.command.options import add_command
from planner.facts.names import DEPLOYMENT_KIND, controller_name
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.printable import printable

__all__ = ["DEFINITION", "add_controller", "read_deployment"]

DEFINITION = Path(__file__).parent / "definition.yaml"
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # a DNS label: others might change the API's path


def add_controller(commands: Any) -> None:
    """Add `tidemill controller` to `commands`, the result of argparse's `add_subparsers`."""
    controller = add_command(
        commands,
        "controller",
        "turn a deployment's units on and off by its schedule",
        f"Turn the units of a {DEPLOYMENT_KIND} on and off as its schedule says, until it is stopped. A spec with "
        "kubernetes.controller runs it in the cluster. With --dry-run it runs anywhere and prints what it would do.",
    )
    controller.add_argument("deployment", nargs="?", metavar="NAMESPACE/NAME", help=f"the {DEPLOYMENT_KIND}")
    controller.add_argument(
        "--context", metavar="NAME", help="context of the kubeconfig; default: this pod's service account"
    )
    controller.add_argument(
        "--address", metavar="ADDRESS", help="address of this pod, for the kubelet's probes; default: answer no probes"
    )
    controller.add_argument("--dry-run", action="store_true", help="change nothing, and print what would be done")
    controller.add_argument("--once", action="store_true", help="check the cluster once and exit")
    controller.add_argument(
        "--definition", action="store_true", help=f"print the definition of {DEPLOYMENT_KIND}, for kubectl apply"
    )
    controller.set_defaults(command=_controller)


def _controller(arguments: argparse.Namespace) -> None:
    if arguments.definition:
        print(DEFINITION.read_text(encoding="utf-8"), end="")
        return
    namespace, name = read_deployment(arguments.deployment, "tidemill controller")
    _follow(namespace, name, arguments)


def read_deployment(written: str | None, command: str, default_namespace: str = "") -> tuple[str, str]:
    """Return (namespace, name) of `NAMESPACE/NAME`, or of `NAME` if there is a default namespace.

    Raises CallError if it is neither.
    """
    namespace, _, name = (written or "").rpartition("/")
    namespace = namespace or ("" if "/" in (written or "") else default_namespace)
    if LABEL.fullmatch(namespace) and all(LABEL.fullmatch(each) for each in name.split(".")):
        return namespace, name
    rule, reason = "R501 must be NAMESPACE/NAME", "that is how kubectl get tidemill -A lists a deployment"
    fix = f"write the namespace and the name of a {DEPLOYMENT_KIND}, with a slash between them"
    raise CallError([Finding("DEPLOYMENT", written, rule, reason, fix).at(command)])


def _follow(namespace: str, name: str, arguments: argparse.Namespace) -> None:
    from stacks.controller.act import FIELD_MANAGER  # loads the Kubernetes client, which nothing else here needs
    from stacks.controller.follower import Follower
    from stacks.controller.health import Health, serve_probes
    from stacks.controller.lease import Lease
    from stacks.controller.loop import follow, run_once
    from stacks.kube.api import connect, connect_inside
    from stacks.kube.errors import ProviderError
    from stacks.live.status import ClusterError

    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    holder = f"{socket.gethostname()}_{os.getpid()}"
    lease = None if arguments.dry_run else Lease(namespace, controller_name(name), holder, FIELD_MANAGER)
    health = Health()
    try:
        api = connect(arguments.context) if arguments.context else connect_inside()
        follower = Follower(api, namespace, name, lease, _say, api.now)
        if arguments.once:
            _say(run_once(follower, api.now()))
            return
        with serve_probes(health, arguments.address) if arguments.address else nullcontext():
            follow(follower, ending.is_set, ending.wait, health)
    except ProviderError as error:
        raise ClusterError(error) from None


def _say(sentence: str) -> None:
    with suppress(OSError):  # the log may be on a full disk; the day goes on
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {printable(sentence)}", flush=True)

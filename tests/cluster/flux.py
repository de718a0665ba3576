"""Flux on a control plane: its source and kustomize controllers, outside images, and the Git server that they read.

The repository is a folder; `git http-backend` serves it on a loopback address, as a forge would. Nobody waits for an
interval: `reconcile` asks for a look, as `flux reconcile` does, and waits until it is over.
"""

import http.server
import os
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml
from kubernetes import client

from tests.cluster.build import obtain
from tests.cluster.control_plane import ControlPlane
from tests.cluster.definitions import serve_definitions
from tests.cluster.objects import Objects
from tests.cluster.products import FLUX_KUSTOMIZE, FLUX_KUSTOMIZE_CRDS, FLUX_SOURCE, FLUX_SOURCE_CRDS

__all__ = ["FLUX_PRODUCTS", "NAMESPACE", "Flux", "Repository", "running_flux", "serving_repository"]

FLUX_PRODUCTS = (FLUX_SOURCE, FLUX_SOURCE_CRDS, FLUX_KUSTOMIZE, FLUX_KUSTOMIZE_CRDS)
NAMESPACE = "flux-system"
BRANCH = "main"
SOURCES = ("source.toolkit.fluxcd.io", "v1", NAMESPACE, "gitrepositories")
KUSTOMIZATIONS = ("kustomize.toolkit.fluxcd.io", "v1", NAMESPACE, "kustomizations")
PORTS = {"storage": 19090, "source health": 19440, "source metrics": 18080, "health": 19441, "metrics": 18081}
TIMEOUT_S = 120  # of a look: 1 to 10 s alone on the machine
AUTHOR = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")


@dataclass(frozen=True)
class Repository:
    """A bare repository that is served, and a checkout of it."""

    url: str
    bare: Path
    checkout: Path

    def commit(self, message: str) -> None:
        """Commit everything in the checkout, and push it."""
        _git(self.checkout, "add", "--all")
        _git(self.checkout, *AUTHOR, "commit", "--quiet", "--message", message)
        _git(self.checkout, "push", "--quiet", str(self.bare), BRANCH)

    def revert(self) -> None:
        """Revert the last commit, and push that."""
        _git(self.checkout, *AUTHOR, "revert", "--no-edit", "HEAD")
        _git(self.checkout, "push", "--quiet", str(self.bare), BRANCH)

    @property
    def head(self) -> str:
        """The newest commit."""
        return _git(self.bare, "rev-parse", BRANCH).strip()


@dataclass(frozen=True)
class Flux:
    """The two controllers, running, and the repository that they read."""

    control_plane: ControlPlane
    repository: Repository
    plan: str

    def follow(self, documents: Path) -> None:
        """Apply what `tidemill gitops init --flux` has written for the plan."""
        objects = Objects(self.control_plane.api, str(self.control_plane.folder / "discovery-with-flux.json"))
        for each in yaml.safe_load_all(documents.read_text()):
            objects.apply(each)

    def fetch(self) -> None:
        """Have the repository read, as a webhook would. What is new in it is then applied."""
        self._look(SOURCES, self.plan)

    def reconcile(self) -> None:
        """Have the repository read, and what is in it applied: the kinds, then the plan.

        Raise NotReady where something is not healthy in time.
        """
        self.fetch()
        for each in (f"{self.plan}-kinds", self.plan):
            self._look(KUSTOMIZATIONS, each)
            self.wait(lambda name=each: self._applied(name), f"Flux has applied {each}")

    def wait_until_ready(self) -> None:
        """Wait until the plan's newest commit is applied, and everything in it is healthy."""
        self.wait(lambda: self._applied(self.plan), f"Flux has applied {self.plan}")

    def condition(self) -> tuple[str, str, str]:
        """Return status, reason and message of the plan's condition Ready; empty texts where there is none."""
        found = self._status(KUSTOMIZATIONS, self.plan).get("conditions", [])
        ready = next((each for each in found if each["type"] == "Ready"), {})
        return ready.get("status", ""), ready.get("reason", ""), ready.get("message", "")

    def inventory(self) -> set[str]:
        """Return the names of all objects of the plan that were applied last."""
        entries = self._status(KUSTOMIZATIONS, self.plan)["inventory"]["entries"]
        return {each["id"].split("_")[1] for each in entries}  # NAMESPACE_NAME_GROUP_KIND

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Poll `ready` until it is true. Raise NotReady at the deadline."""
        self.control_plane.daemons.wait_until(ready, what, TIMEOUT_S)

    def _applied(self, kustomization: str) -> bool:
        """Whether the newest commit is applied, and everything in it is healthy."""
        status = self._status(KUSTOMIZATIONS, kustomization)
        is_ready = any((each["type"], each["status"]) == ("Ready", "True") for each in status.get("conditions", []))
        return is_ready and status.get("lastAppliedRevision", "").endswith(self.repository.head)

    def _look(self, kind: tuple[str, str, str, str], name: str) -> None:
        """Ask for a look at an object, and wait until it is over."""
        token = str(time.time_ns())
        asked = {"metadata": {"annotations": {"reconcile.fluxcd.io/requestedAt": token}}}
        self._calls.patch_namespaced_custom_object(*kind, name, asked)
        self.wait(lambda: self._status(kind, name).get("lastHandledReconcileAt") == token, f"Flux has looked at {name}")

    def _status(self, kind: tuple[str, str, str, str], name: str) -> dict:
        return self._calls.get_namespaced_custom_object(*kind, name).get("status", {})

    @property
    def _calls(self) -> client.CustomObjectsApi:
        return client.CustomObjectsApi(self.control_plane.api)


@contextmanager
def serving_repository(folder: Path) -> Iterator[Repository]:
    """Make an empty repository in `folder`, and serve it by Git's smart HTTP."""
    bare, checkout = folder / "plans.git", folder / "checkout"
    for path, more in ((bare, ("--bare",)), (checkout, ())):
        path.mkdir()
        _git(path, "init", "--quiet", f"--initial-branch={BRANCH}", *more)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_GitBackend, folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Repository(f"http://127.0.0.1:{server.server_port}/{bare.name}", bare, checkout)
        server.shutdown()


@contextmanager
def running_flux(control_plane: ControlPlane, repository: Repository, plan: str) -> Iterator[Flux]:
    """Serve Flux's kinds and start its controllers. They end with the control plane."""
    kinds = [path for each in (FLUX_SOURCE_CRDS, FLUX_KUSTOMIZE_CRDS) for path in sorted(obtain(each).glob("*.yaml"))]
    serve_definitions(control_plane, kinds)
    client.CoreV1Api(control_plane.api).create_namespace({"metadata": {"name": NAMESPACE}})
    host = control_plane.address.host
    at = {name: f"{host}:{port}" for name, port in PORTS.items()}
    storage = control_plane.folder / "flux-storage"
    storage.mkdir()
    control_plane.daemons.start(
        "flux-source",
        *_environment(control_plane, at),
        *(obtain(FLUX_SOURCE), f"--storage-path={storage}", f"--storage-addr={at['storage']}"),
        *(f"--storage-adv-addr={at['storage']}", f"--health-addr={at['source health']}"),
        f"--metrics-addr={at['source metrics']}",
    )
    control_plane.daemons.start(
        "flux-kustomize",
        *_environment(control_plane, at),
        *(obtain(FLUX_KUSTOMIZE), f"--health-addr={at['health']}", f"--metrics-addr={at['metrics']}"),
        "--requeue-dependency=1s",
    )
    yield Flux(control_plane, repository, plan)


def _environment(control_plane: ControlPlane, at: dict[str, str]) -> list[str]:
    """What to put before a command, so that it finds the API server and writes to no home folder."""
    cache = control_plane.folder / "sigstore"
    return [
        *("env", f"KUBECONFIG={control_plane.kubeconfig}", f"RUNTIME_NAMESPACE={NAMESPACE}"),
        *(f"TUF_ROOT={cache}", f"SOURCE_CONTROLLER_LOCALHOST={at['storage']}"),
    ]


def _git(folder: Path, *words: str) -> str:
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}  # not the developer's
    done = subprocess.run(["git", *words], cwd=folder, env=os.environ | settings, check=True, capture_output=True)
    return done.stdout.decode()


class _GitBackend(http.server.BaseHTTPRequestHandler):
    """Git's own CGI program, which answers fetches from the bare repositories in a folder."""

    def __init__(self, folder: Path, *request: object) -> None:
        self._folder = folder
        super().__init__(*request)

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        settings = {
            "GIT_PROJECT_ROOT": str(self._folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": url.path,
            "QUERY_STRING": url.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(
            ["git", "http-backend"], input=body, env=os.environ | settings, check=True, capture_output=True
        )
        self._answer(done.stdout)

    do_POST = do_GET

    def _answer(self, output: bytes) -> None:
        """Send what a CGI program wrote: headers, an empty line, the body."""
        head, _, rest = output.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(headers.pop("Status", "200 OK").split()[0]))
        for name, value in (headers | {"Content-Length": str(len(rest))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(rest)

    def log_message(self, *_: object) -> None:
        """Say nothing: Flux asks every few seconds."""

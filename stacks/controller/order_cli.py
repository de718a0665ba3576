"""The `tidemill hold` and `tidemill force` commands: a person's orders to the controller. Every order has an end.

An order is a field of the TidemillDeployment that no manifest has. It is written under a field manager of its own:
Flux takes over what managers such as kubectl-patch own. It is a merge and no server-side apply, which would create a
deployment that is not there, and could not end an order that kubectl has written.
"""

import argparse
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from planner.command.options import add_command, add_format
from planner.command.printed import print_json
from planner.facts.names import DEPLOYMENT_KIND
from planner.facts.quantities import read_seconds, respell_quantity
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.printable import printable
from stacks.controller.cli import read_deployment
from stacks.kube.manifest import Manifest

__all__ = [
    "FIELD_MANAGER",
    "NAMESPACE",
    "add_force",
    "add_hold",
    "read_state",
    "read_until",
    "require_deployment",
    "require_end",
    "require_state_or_end",
]

Order = Literal["hold", "force"]

FIELD_MANAGER = "tidemill-order"
NAMESPACE = "tidemill"  # the namespace of a plan whose spec names none
TIME_OF_DAY = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")  # names the state that begins then
FORM = "%Y-%m-%dT%H:%M:%SZ"  # as Kubernetes writes times


def add_hold(commands: Any) -> None:
    """Add `tidemill hold` to `commands`, the result of argparse's `add_subparsers`."""
    hold = add_command(
        commands,
        "hold",
        "keep a deployment's units as they are, until a time",
        "Tell a deployment's controller to change nothing until a time: it starts, drains and changes no unit.",
    )
    _add_order(hold, "hold")


def add_force(commands: Any) -> None:
    """Add `tidemill force` to `commands`, the result of argparse's `add_subparsers`."""
    force = add_command(
        commands,
        "force",
        "keep a deployment in a state of its day, until a time",
        "Tell a deployment's controller to keep a state of the day until a time, whatever the hour is.",
    )
    force.add_argument("--state", metavar="HH:MM", help="the state that begins at this time; required with --until")
    _add_order(force, "force")


def _add_order(parser: argparse.ArgumentParser, order: Order) -> None:
    parser.add_argument(
        "deployment", metavar="[NAMESPACE/]NAME", help=f"the {DEPLOYMENT_KIND}; default namespace: {NAMESPACE}"
    )
    end = parser.add_mutually_exclusive_group(required=True)
    end.add_argument("--until", metavar="TIME", help="when the order ends: 2026-12-01T06:00:00Z, or 2h from now")
    end.add_argument("--end", action="store_true", help="end the order now")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig; default: the current one")
    add_format(parser)
    parser.set_defaults(command=_give_order, order=order, state=None)


def _give_order(arguments: argparse.Namespace) -> None:
    from stacks.controller.observe import deployment_reference, find_deployment  # loads the Kubernetes client
    from stacks.kube.api import connect
    from stacks.kube.errors import ProviderError
    from stacks.live.status import ClusterError

    order: Order = arguments.order
    namespace, name = read_deployment(arguments.deployment, f"tidemill {order}", NAMESPACE)
    require_state_or_end(order, arguments.state, is_end=arguments.end)
    require_end(order, arguments.until)
    try:
        api = connect(arguments.context)
        until = None if arguments.end else read_until(order, arguments.until, api.now())
        deployment = require_deployment(find_deployment(api, namespace, name), order, namespace, name)
        given = None if until is None else {"until": until} | _state(arguments.state, deployment["spec"]["steps"])
        api.merge(deployment_reference(namespace, name), {"spec": {order: given}}, manager=FIELD_MANAGER)
    except ProviderError as error:
        raise ClusterError(error) from None
    if arguments.format == "json":
        print_json({"namespace": namespace, "name": name, order: given})
    else:
        print(printable(f"{namespace}/{name}: {_say(order, given)}"))


def require_deployment(found: Manifest | None, order: Order, namespace: str, name: str) -> Manifest:
    """Return the deployment. Raises CallError if none was found."""
    if found is not None:
        return found
    rule = f"R505 must be a {DEPLOYMENT_KIND} of the namespace {namespace}"
    reason = "an order is a field of it, and only a plan with a controller has one"
    fix = "kubectl get tidemill -A lists them"
    raise CallError([Finding("NAME", name, rule, reason, fix).at(f"tidemill {order}")])


def require_state_or_end(order: Order, state: str | None, *, is_end: bool) -> None:
    """Raises CallError if a forced state is missing or is no time of day.

    A command that ends an order (`is_end`) must have no state.
    """
    if order == "force" and (state is None) != is_end:
        rule = "R502 must not be given with --end" if is_end else "R502 must be given with --until"
        reason = "an order names a state, and there is one order at most"
        fix = "leave it out" if is_end else "for example --state 18:00"
        raise CallError([Finding("--state", state, rule, reason, fix).at("tidemill force")])
    if state is not None and not TIME_OF_DAY.fullmatch(state):
        raise _wrong_state(state, "R504 must be the time of day at which a state begins, as HH:MM", "for example 18:00")


def require_end(order: Order, written: str | None) -> None:
    """Raises CallError if an order's end is neither a time nor a duration. This does not need the cluster's time."""
    if written is not None and _read_end(written, 0.0) is None:
        raise _wrong_end(order, written, "a time")


def read_until(order: Order, written: str, now: float) -> str:
    """Return the time at which an order ends, in Kubernetes' format. `now` is the cluster's time.

    Raises CallError if `written` is neither a time nor a duration, or if the order may not end then.
    """
    end = _read_end(written, now)
    if end is not None and end > now:
        return datetime.fromtimestamp(end, UTC).strftime(FORM)
    raise _wrong_end(order, written, f"a time after {datetime.fromtimestamp(now, UTC).strftime(FORM)}")


def _wrong_end(order: Order, written: str, time: str) -> CallError:
    rule = f"R503 must be {time}, with its time zone, or a duration such as 2h"
    reason = "an order ends by itself, by the cluster's clock"
    spelled = respell_quantity("time", written)
    return CallError([Finding("--until", written, rule, reason, spelled or "for example 2h").at(f"tidemill {order}")])


def read_state(written: str, steps: Sequence[dict[str, Any]]) -> str:
    """Return `written` if one of the day's `steps` begins at that time. Raises CallError otherwise."""
    states = [step["at"] for step in steps]
    if written in states:
        return written
    raise _wrong_state(written, f"R504 must be a state of the day ({', '.join(states)})", "give one of these")


def _wrong_state(written: str, rule: str, fix: str) -> CallError:
    reason = "no other number of units has been planned"
    return CallError([Finding("--state", written, rule, reason, fix).at("tidemill force")])


def _state(written: str | None, steps: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {} if written is None else {"state": read_state(written, steps)}


def _read_end(written: str, now: float) -> float | None:
    """Return the instant that a time, or a duration from `now`, names.

    Return None if it is neither, has no time zone, or is beyond Python's dates.
    """
    seconds = read_seconds(written)
    try:
        if seconds is not None:
            return datetime.fromtimestamp(now + seconds, UTC).timestamp()
        time = datetime.fromisoformat(written)
        return None if time.tzinfo is None else time.astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def _say(order: Order, given: dict[str, str] | None) -> str:
    if given is None:
        return f"there is no {order} any more"
    does = "held as it is" if order == "hold" else f"state {given['state']} is forced"
    return f"{does} until {given['until']}"

"""The `tidemill status` command: units on this machine, or in a cluster. This file prints what other files read."""

import argparse
import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from planner.command.options import add_color, add_command, add_format, add_spec_or_plan
from planner.command.printed import print_colored, print_json, say
from planner.compiler import plan_from
from planner.facts.quantities import counted
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.printable import printable
from planner.schedule.schedule import ALL_STAY_ON, NOT_EXECUTED
from stacks.local.cli import day_line, explain_epoch, explain_state, map_json, record_json
from stacks.local.errors import LocalError
from stacks.local.find import DEMO, find_all, find_deployment, nothing_runs_message
from stacks.local.in_service import with_maps
from stacks.local.record import Record
from stacks.local.run_folder import RunFolder

if TYPE_CHECKING:
    from stacks.live.look import Look

__all__ = ["add_status"]

WATCH_S = 1.0
WATCH_CLUSTER_S = 5.0  # assumed: one look asks an API server for each unit's objects and metrics
RED, GREEN = r"(?<= ranks  )(failed|unknown|absent)", r"(?<= ranks  )ready"  # states of units in the text
NOTHING: dict[str, Any] = {"endpoint": None, "plan_digest": None, "units": []}


def add_status(commands: Any) -> None:
    """Add `tidemill status` to `commands`, the result of argparse's `add_subparsers`."""
    status = add_command(
        commands,
        "status",
        "show what runs on this machine, or in a cluster",
        "Show units and their states. A unit on this machine that has failed makes it exit with 1.",
    )
    add_spec_or_plan(status, default="all that runs", metavar="SPEC|PLAN.json|NAME")
    status.add_argument("--context", metavar="NAME", help="context of the kubeconfig: show the units in that cluster")
    status.add_argument(
        "--changes", action="store_true", help="show what changes did to its units, beside what was promised"
    )
    status.add_argument(
        "--watch",
        action="store_true",
        help="stay, with traffic, load and the last events; without a terminal, show units again at every change",
    )
    add_color(status)
    add_format(status)
    status.set_defaults(command=_status)


def _status(arguments: argparse.Namespace) -> int:
    """Show the units once, or with --watch until the user ends it. Return the exit status.

    Raises CallError for options that exclude each other.
    """
    if arguments.changes and arguments.context is None:
        reason, fix = "on this machine nothing records changes of units", "give --context NAME or leave out --changes"
        raise CallError([Finding("", None, "S900 was called wrongly", reason, fix).at("tidemill")])
    if not arguments.watch:
        return _status_now(arguments)
    if arguments.format == "json":
        reason, fix = "--watch prints more than one document", "leave out --watch or --format json"
        raise CallError([Finding("", None, "S900 was called wrongly", reason, fix).at("tidemill")])
    from stacks.live.watch import has_screen, watch  # importing rich takes 20 ms, which only --watch should

    if has_screen() and not arguments.changes:
        every_s = WATCH_S if arguments.context is None else WATCH_CLUSTER_S
        return watch(_make_look_function(arguments), every_s, nothing_runs_message)
    return _print_at_every_change(arguments)


def _make_look_function(arguments: argparse.Namespace) -> Callable[[], Sequence["Look"]]:
    """Return a function that looks at the deployments once. A cluster's plan is read or made here, not at each look."""
    from stacks.live.look import look_at_cluster, look_here

    if arguments.context is None:
        return lambda: [look_here(record) for record in _require_records(arguments)]
    from stacks.kube.api import connect
    from stacks.kube.errors import ProviderError
    from stacks.live.status import ClusterError

    plan = plan_from(arguments.given or DEMO, overlays=arguments.overlays)

    def look() -> Sequence["Look"]:
        try:
            return [look_at_cluster(plan, connect(arguments.context))]
        except ProviderError as error:
            raise ClusterError(error) from None

    return look


def _require_records(arguments: argparse.Namespace) -> list[Record]:
    """Return the records of the deployments that the user asks for. Raises LocalError if one cannot be read."""
    records, damaged = _read_all(find_all(arguments.given, arguments.overlays))
    if damaged is not None:
        raise damaged
    return [record for record in records if record]


def _print_at_every_change(arguments: argparse.Namespace) -> int:
    """Print the units at every change, so that they can be kept as a log, until Ctrl-C. Return the exit status."""
    shown, notes, status = "", "", 0
    with suppress(KeyboardInterrupt):
        while True:
            with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
                status = _status_now(arguments)
            last_shown, last_notes = shown, notes
            shown, notes = out.getvalue(), err.getvalue()
            if shown != last_shown:
                print(shown, flush=True)
            if notes != last_notes:
                print(notes, end="", file=sys.stderr, flush=True)
            time.sleep(WATCH_S)
    return status


def _status_now(arguments: argparse.Namespace) -> int:
    """Show the units once. Return 1 if any unit on this machine has failed, else 0; for a cluster always 0.

    Raises LocalError if a deployment's record cannot be read. The text shows the other deployments first.
    """
    if arguments.context is not None:
        show = _cluster_changes if arguments.changes else _cluster_status
        show(arguments)
        return 0
    if arguments.format == "json":
        folder = find_deployment(arguments.given, arguments.overlays)  # JSON describes one deployment
        records, damaged = [_read(folder)] if folder else [], None
        print_json(record_json(records[0]) if records and records[0] else NOTHING)
    else:
        records, damaged = _read_all(find_all(arguments.given, arguments.overlays))
        # a record's text must not control the terminal
        lines = [printable(line) for record in records if record for line in _lines(record)]
        if lines or damaged is None:
            print_colored(("\n".join(lines) or nothing_runs_message()) + "\n", arguments.color, red=RED, green=GREEN)
    if any(record and record.switches_units for record in records):
        say(ALL_STAY_ON)
    if damaged is not None:
        raise damaged
    return 1 if any(record and record.has_failed for record in records) else 0


def _read_all(folders: Sequence[RunFolder]) -> tuple[list[Record | None], LocalError | None]:
    """Return (the records that can be read, the first error; None if all could be read).

    A record is None if its folder has none.
    """
    records, damaged = list[Record | None](), None
    for folder in folders:
        try:
            records.append(_read(folder))
        except LocalError as error:
            damaged = damaged or error
    return records, damaged


def _read(folder: RunFolder) -> Record | None:
    record = folder.read()
    return record and with_maps(record, folder.launch_folder)


def _lines(record: Record) -> Iterator[str]:
    """Yield the lines about one deployment on this machine."""
    where = record.endpoint if len(record.gateways) == 1 else f"{len(record.gateways)} gateways"
    yield f"{record.name}: {where}, plan {record.plan_digest}"
    if record.day is not None:
        yield f"  {day_line(record.day)}"
    if record.failure is not None:
        yield f"  {record.failure}"
    if record.trouble is not None:
        yield f"  the supervisor goes on, but {record.trouble}"
    for gateway in record.gateways:
        if len(record.gateways) > 1 or gateway.state != "ready":
            yield f"  {gateway.name}  {gateway.endpoint}  {gateway.state}{_bracket(explain_state(record, gateway))}"
    for unit in record.units:
        author = explain_epoch(unit).partition(": ")[0]
        epoch = f", in epoch {unit.epoch}, by {author}" if unit.epoch else ""
        why = _bracket(explain_state(record, unit))
        yield f"  {unit.name}  {unit.phase}  {unit.ranks} ranks  {unit.state}{epoch}{why}"
        yield from _map_lines(map_json(unit))


def _map_lines(expert_map: Mapping[str, str]) -> Iterator[str]:
    """Yield lines about a unit's expert map: the map in service if it is not the plan's, and the last decision."""
    if expert_map.get("in_service", expert_map["plan"]) != expert_map["plan"]:
        why = f": {expert_map['why']}" if "why" in expert_map else ""
        yield f"    expert map {expert_map['in_service']} instead of the plan's {expert_map['plan']}{why}"
    if "decision" in expert_map:
        yield f"    expert_load.live: {expert_map['decision']}"
    if "unread" in expert_map:
        yield f"    {expert_map['unread']}"
    if "forgets" in expert_map:
        yield f"    a restart begins in another epoch: {expert_map['forgets']}"


def _cluster_status(arguments: argparse.Namespace) -> None:
    from stacks.live.status import ask_cluster  # loads the Kubernetes client, which nothing else here needs

    plan = plan_from(arguments.given or DEMO, overlays=arguments.overlays)
    live = ask_cluster(plan, arguments.context)
    if live.differing:
        say(f"the cluster has another plan; units with another launch file: {', '.join(live.differing)}")
    if live.unseen:
        say(f"the nodes could not be read: {live.unseen}")
    if live.unasked:
        say(f"not every gateway could be asked which units it refuses: {live.unasked}")
    if plan.switches_units and plan.kubernetes.controller is None:
        say(NOT_EXECUTED)
    if arguments.format == "json":
        units = [{key: value for key, value in asdict(unit).items() if value is not None} for unit in live.units]
        print_json({"endpoint": live.endpoint, "plan_digest": live.plan_digest, "units": units})
        return
    print(f"{plan.name}: {live.endpoint}, plan {live.plan_digest or ('another' if live.differing else 'not applied')}")
    for unit in live.units:
        where = "".join(f", on spare {each.node} for {each.for_node}" for each in unit.stand_ins or ())
        line = f"  {unit.name}  {unit.phase}  {unit.ranks} ranks  {unit.state}{where}{_bracket(unit.reason)}\n"
        print_colored(line, arguments.color, red=RED, green=GREEN)
        for more in _map_lines(unit.expert_map) if unit.expert_map else ():
            print(printable(more))


def _cluster_changes(arguments: argparse.Namespace) -> None:
    from stacks.live.changes import change_lines, map_lines, read_record  # loads the Kubernetes client

    plan = plan_from(arguments.given or DEMO, overlays=arguments.overlays)
    if plan.kubernetes.controller is None:
        reason, fix = f"{plan.name} has no kubernetes.controller, which records changes", "leave out --changes"
        raise CallError([Finding("", None, "S900 was called wrongly", reason, fix).at("tidemill")])
    record = read_record(plan, arguments.context)
    changes, maps = ((record or {}).get(key) or [] for key in ("changes", "expertMaps"))
    if arguments.format == "json":
        print_json({"name": plan.name, "changes": changes, "expert_maps": maps})
        return
    if changes:
        print(f"{plan.name}: {counted(len(changes), 'change')}, the newest first")
    else:
        print(f"{plan.name}: {'not applied' if record is None else 'no change since it was deployed'}")
    lines = [line for change in reversed(changes) for line in change_lines(plan.name, change)]
    for line in (*lines, *map_lines(plan.name, maps)):
        print(f"  {printable(line)}")


def _bracket(reason: str | None) -> str:
    """Return a reason in brackets. Without a reason, return an empty text.

    The reason is escaped, since it may be a process's own words.
    """
    return f" ({printable(reason)})" if reason else ""

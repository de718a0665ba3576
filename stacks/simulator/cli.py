"""The `tidemill simulate` command: this file prints, and the other files of the room simulate."""

import argparse
from pathlib import Path
from typing import Any

from planner.command.options import add_command, add_format, add_overlays
from planner.command.printed import errors_json, print_json, print_line, say, show_progress, warn, write_result
from planner.plan.user_input import read_spec
from planner.problems.errors import InfeasibleError

__all__ = ["add_simulate"]

BALANCERS = ("balanced", "least_requests", "round_robin")


def add_simulate(commands: Any) -> None:
    """Add `tidemill simulate` to `commands`, the result of argparse's `add_subparsers`."""
    simulate = add_command(
        commands,
        "simulate",
        "play a day of a spec's traffic over its plan",
        "Plan a spec and play its day: queues, latencies, KV, failures, node-hours, cost and income.",
    )
    simulate.add_argument("spec", type=Path, metavar="SPEC", help="a YAML file with a traffic section")
    add_overlays(simulate)
    simulate.add_argument(
        "--fail",
        action="append",
        default=[],
        metavar="NODE@HH:MM",
        help="let this node fail at this time; may be repeated",
    )
    simulate.add_argument(
        "--date",
        metavar="DAY",
        help="play this date or weekday, with its demand and windows; default: a usual day",
    )
    simulate.add_argument(
        "--set",
        action="append",
        default=[],
        dest="variants",
        metavar="PATH=VALUE",
        help="compare with this change of the spec, in another column; may be repeated; traffic.scale=1.3 changes only "
        "the traffic, and not the plan",
    )
    _add_trace_options(simulate)
    simulate.add_argument("--plot", type=Path, metavar="FILE.png", help="draw a picture of the day")
    simulate.add_argument(
        "--report", type=Path, metavar="FILE.html", help="draw the plan's page for a browser, which begins with the day"
    )
    add_format(simulate)
    simulate.set_defaults(command=_simulate)


def _add_trace_options(simulate: argparse.ArgumentParser) -> None:
    simulate.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="play the requests of this trace one by one instead of a day; the format is Azure's or Mooncake's",
    )
    simulate.add_argument(
        "--window", metavar="START-END", help="play these seconds of the trace only; default: all of it"
    )
    simulate.add_argument(
        "--balancer",
        action="append",
        choices=BALANCERS,
        help="how the gateway chooses ranks for a trace's requests; may be repeated; default: the gateway's own way",
    )


def _simulate(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    If a column's plan failed, the result without this column is printed first. Then raise InfeasibleError or, for JSON,
    return its exit status: the JSON has the errors.
    """
    from stacks.simulator.call import read_call  # imports NumPy, for which other commands should not wait

    spec = read_spec(arguments.spec, arguments.overlays)
    with show_progress("simulating") as report:
        call = read_call(arguments, spec)
        played = call.play(spec, report)
    warn(played.warnings)
    if arguments.plot:
        played.draw(arguments.plot)
        say(f"{arguments.plot}: drawn")
    if arguments.report:
        write_result(arguments.report, played.page())
        say(f"{arguments.report}: drawn")
    if arguments.format == "json":
        print_json(played.document() | (errors_json(played.failed) if played.failed else {}))
        return InfeasibleError.exit_status if played.failed else 0
    for line in played.text().split("\n"):
        print_line(line)
    if played.failed:
        raise InfeasibleError(played.failed)
    return 0

"""The `tidemill doctor` command: this file prints; the other files of the room examine the cluster."""

import argparse
from typing import Any

from planner.command.options import add_command, add_format, add_spec_or_plan
from planner.command.printed import print_json, say, show_progress, warn
from planner.compiler import plan_from
from planner.problems.errors import InfeasibleError
from planner.problems.finding import warnings_json
from planner.problems.printable import printable

__all__ = ["add_doctor"]


def add_doctor(commands: Any) -> None:
    """Add `tidemill doctor` to `commands`, the result of argparse's `add_subparsers`."""
    doctor = add_command(
        commands,
        "doctor",
        "find out why a plan would not run in a cluster",
        "Compare a cluster with what a plan needs. Exit with 3 if a finding keeps the plan from running.",
    )
    add_spec_or_plan(doctor)
    doctor.add_argument(
        "--context", metavar="NAME", required=True, help="context of the kubeconfig: the cluster to check"
    )
    doctor.add_argument(
        "--probe",
        action="store_true",
        help="start a pod on each planned node, to check that it can pull the image and reach the others",
    )
    add_format(doctor)
    doctor.set_defaults(command=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from stacks.doctor.examination import examine  # loads the Kubernetes client, which nothing else here needs
    from stacks.doctor.findings import findings_json, findings_lines

    with show_progress(f"planning {arguments.given}"):
        plan = plan_from(arguments.given, overlays=arguments.overlays)
    warn(plan.warnings)
    with show_progress(f"examining {arguments.context}"):
        found = examine(plan, arguments.context, runs_probe=arguments.probe, report=say)
    if found.probed is not None:
        say(found.probed)
    if arguments.format == "json":
        print_json(findings_json(found.findings) | warnings_json(plan.warnings))
    else:
        print("\n".join(map(printable, findings_lines(found.findings, plan.name, arguments.context))))
    return InfeasibleError.exit_status if found.blocks else 0

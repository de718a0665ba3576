"""The `tidemill experts apply` command: a unit here follows another expert map while it serves."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.command.options import add_command, add_format, add_spec_or_plan
from planner.command.printed import print_json, print_line, show_progress
from planner.facts import names
from planner.facts.files import read_file
from planner.facts.map_files import Map, read_map
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from stacks.local.errors import LocalError
from stacks.local.find import find_deployment, nothing_runs_message
from stacks.local.hand_over import hand_over
from stacks.local.run_folder import RunFolder

__all__ = ["add_apply"]

CALL = "tidemill experts apply"


def add_apply(commands: Any) -> None:
    """Add `experts apply` to `commands`, the result of `add_subparsers`."""
    apply = add_command(
        commands,
        "experts",
        "give a running unit another expert map",
        "Let a unit on this machine follow another expert map while it serves. Its ranks fetch the experts that they "
        "lack from each other, and change a layer's slots between two steps.",
    )
    apply.add_argument("apply", choices=["apply"], metavar="apply", help="(this command)")
    apply.add_argument("map", type=Path, metavar="MAP.json", help="as tidemill experts or SGLang writes it")
    add_spec_or_plan(apply, default="the only one that runs here", metavar="SPEC|PLAN.json|NAME")
    apply.add_argument("--unit", required=True, help="the unit, such as demo-decode-0")
    add_format(apply)
    apply.set_defaults(command=_apply)


def _apply(arguments: argparse.Namespace) -> int:
    folder = find_deployment(arguments.given, arguments.overlays)
    if folder is None:
        raise _unit_error(arguments.unit, nothing_runs_message(), "start it: tidemill up")
    physical_to_logical = _read_rows(arguments.map, _num_moe_layers(folder, arguments.unit))
    with show_progress(f"switching {arguments.unit}"):
        ending = _switch(folder, arguments.unit, physical_to_logical)
    _require_switched(folder, arguments.unit, ending)
    if arguments.format == "json":
        print_json({"unit": arguments.unit, "moves": 0, "num_bytes": 0, "seconds": 0.0} | ending)
    else:
        moved = f"{ending.get('moves', 0):,} experts, {ending.get('num_bytes', 0) / 1e6:,.1f} MB"
        print_line(f"{arguments.unit} is in epoch {ending['number']}; its first rank received {moved}")
    return 0


def _require_switched(folder: RunFolder, unit: str, ending: dict[str, Any]) -> None:
    """Raise LocalError if `ending`, the first rank's final answer, says that the unit kept its expert map."""
    if "reason" in ending:
        rule = f"R129 {unit} stays in epoch {ending['number']}"
        raise LocalError(rule, ending["reason"], f"tidemill status shows the unit; its logs are in {folder.path}")


def _num_moe_layers(folder: RunFolder, unit: str) -> int:
    """Return the number of MoE layers in a unit's launch file.

    Raises LocalError if there is no such unit, or if the file is missing or torn.
    """
    record = folder.read()
    if record is None:
        raise _unit_error(unit, f"{folder.path} has no record of what runs", "start it: tidemill up")
    units = [each.name for each in record.units]
    if unit not in units:
        raise _unit_error(unit, f"{folder.name} has {', '.join(units)}", "name one of these")
    path = folder.launch_folder / names.launch_file(unit)
    try:
        return len(json.loads(read_file(path))["expert_map"]["physical_to_logical"])
    except (OSError, ValueError, LookupError, TypeError):
        reason, fix = f"its launch file {path} cannot be read", "tidemill down, then tidemill up"
        raise _unit_error(unit, reason, fix) from None


def _read_rows(path: Path, num_moe_layers: int) -> Map:
    """Return the rows of a map file, `[num_moe_layers][num_slots]` of expert numbers, without rows of dense layers.

    Raises CallError if the file is no map.
    """
    found = read_map(path)
    if isinstance(found, Finding):
        raise CallError([replace(found, path="MAP.json").at(CALL)])
    return found.rows[found.num_dense_layers(num_moe_layers) :]


def _switch(folder: RunFolder, unit: str, physical_to_logical: Map) -> dict[str, Any]:
    """Ask the unit's first rank to switch to an expert map. Return the rank's final answer.

    The answer has the unit's epoch, and a reason if the switch failed.

    Raises LocalError if the rank does not answer.
    """
    try:
        return hand_over(folder.launch_folder, unit, physical_to_logical)
    except (OSError, ValueError) as error:
        raise _unit_error(unit, f"its first rank gives no answer: {error}", "tidemill status shows its state") from None


def _unit_error(unit: str, reason: str, fix: str) -> LocalError:
    return LocalError(f"R128 --unit ({unit}) must be a unit that serves here", reason, fix)

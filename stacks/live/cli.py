"""The `tidemill experts --from` command: this file prints; the other files of the room ask the ranks."""

import argparse
import json
from pathlib import Path
from typing import Any

from planner.command.options import add_command, add_format
from planner.command.printed import print_json, print_line, require_output, show_progress, write_result

__all__ = ["add_recorded"]


def add_recorded(commands: Any) -> None:
    """Add `tidemill experts --from`, which reads loads from ranks. The planner's own `experts` command makes a map."""
    recorded = add_command(
        commands,
        "experts",
        "save the loads that ranks have recorded",
        "Save the loads of experts that running ranks have counted, as a file for expert_load.file of a spec and for "
        "LOADS of this command.",
    )
    recorded.add_argument(
        "--from",
        dest="urls",
        action="append",
        required=True,
        metavar="URL",
        help="a rank's metrics (http://HOST:PORT/metrics), once for each rank, or a Prometheus that has them all",
    )
    recorded.add_argument("--model", metavar="NAME", help="the model, where ranks of several have recorded loads")
    recorded.add_argument("-o", dest="output", type=Path, metavar="LOADS.json", required=True, help="the file to write")
    add_format(recorded)
    recorded.set_defaults(command=_save_loads)


def _save_loads(arguments: argparse.Namespace) -> None:
    from stacks.measured.recorded import read_recorded  # loads an HTTP client, which nothing else here needs

    require_output(arguments.output, arguments)
    with show_progress("reading loads"):
        found = read_recorded(arguments.urls, arguments.model)
    write_result(arguments.output, json.dumps(found.loads) + "\n")
    size = {
        "layers": len(found.loads),
        "experts": len(found.loads[0]),
        "rows": found.num_rows,
        "ranks": found.num_ranks,
    }
    if arguments.format == "json":
        print_json({"file": str(arguments.output), **size})
    else:
        said = "{rows:,} rows of {experts} experts in {layers} MoE layers, from {ranks} ranks".format(**size)
        print_line(f"{arguments.output}: {said}")

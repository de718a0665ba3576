"""The command `experts`: an expert map for measured loads. It reads a clock only to say how long the map took."""

import argparse
import time
from typing import TYPE_CHECKING, Any

from planner.command.options import add_command, add_format
from planner.command.printed import print_json, require_output, show_progress, write_result
from planner.facts.digest import pretty_json

if TYPE_CHECKING:
    from planner.expert_map import ExpertMap
    from planner.experts.experts import ExpertsJob


def add_experts(commands: Any) -> None:
    """Add the command `experts`."""
    from planner.experts.call import add_options

    experts = add_command(
        commands,
        "experts",
        "make an expert map for measured loads",
        "Spread experts over GPUs by measured loads, without a spec: the map, its balance, and the best possible one. "
        "With --from URL instead, save the loads that running ranks have recorded (see experts --from= --help).",
    )
    add_options(experts)
    add_format(experts)
    experts.set_defaults(command=_experts)


def _experts(arguments: argparse.Namespace) -> None:
    from planner.experts.answer import answer_text, make_answer
    from planner.experts.call import read_call
    from planner.experts.experts import check_call, make_map
    from planner.facts.map_files import FILE_TYPES

    job = check_call(read_call(arguments))
    if arguments.output:
        require_output(arguments.output, arguments, form=FILE_TYPES.get(arguments.export, "json"))
    with show_progress("balancing experts"):
        began = time.perf_counter()
        expert_map = make_map(job)
        seconds = round(time.perf_counter() - began, 6)
    answer = make_answer(job, expert_map)
    document = answer.model_dump(mode="json")
    if arguments.output:
        write_result(arguments.output, _map_file(arguments, job, expert_map, document))
    if arguments.format == "json":
        print_json(document | {"seconds": seconds})
    else:
        print(f"{answer_text(answer)}\n  computed in     {seconds:.3f} s")


def _map_file(arguments: argparse.Namespace, job: "ExpertsJob", expert_map: "ExpertMap", document: Any) -> str:
    from planner.facts.map_files import export_map

    if arguments.export is None:
        return pretty_json(document)
    return export_map(arguments.export, expert_map.physical_to_logical, arguments.gpus, job.first_layer)

"""The options of `tidemill experts`: what its command line accepts, and the call that it is parsed into."""

import argparse
from pathlib import Path
from typing import get_args

from planner.expert_map import Effort, Policy, SplitRule
from planner.experts.call import ExpertsCall
from planner.facts.map_files import Engine
from planner.facts.terms import Coverage

__all__ = ["add_options", "call_from"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add LOADS and every option but those that all commands have."""
    _add_loads(parser)
    _add_sizes(parser)
    _add_goals(parser)
    _add_counting(parser)
    _add_previous(parser)
    _add_output(parser)


def call_from(arguments: argparse.Namespace) -> ExpertsCall:
    """Return the call that was parsed, right or wrong."""
    return ExpertsCall(
        loads=tuple(arguments.loads),
        gpus=arguments.gpus,
        nodes=arguments.nodes,
        slots_per_gpu=arguments.slots_per_gpu,
        groups=arguments.groups,
        policy=arguments.policy,
        effort=arguments.effort,
        coverage=arguments.coverage,
        nodes_per_rack=arguments.nodes_per_rack,
        split=arguments.split,
        balance=arguments.balance,
        previous=arguments.previous,
        expert_bytes=arguments.expert_bytes,
        step_tokens=arguments.step_tokens,
        experts_per_token=arguments.experts_per_token,
        groups_per_token=arguments.groups_per_token,
        keep_within=arguments.keep_within,
        export=arguments.export,
        first_layer=arguments.first_layer,
        output=arguments.output,
    )


def _add_loads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "loads",
        nargs="+",
        type=Path,
        metavar="LOADS",
        help=".npy, JSON or what SGLang recorded (.pt): token counts [layers][experts]; of several windows a file each",
    )
    parser.add_argument(
        "--balance",
        default="mean",
        metavar="mean|worst|quantile=Q",
        help="of several windows: their mean, the worst, or a quantile of max/mean over them; default: mean",
    )


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpus", type=int, required=True, metavar="N", help="number of GPUs to spread the experts over"
    )
    parser.add_argument(
        "--nodes", type=int, required=True, metavar="M", help="number of nodes that hold these GPUs, equally many each"
    )
    parser.add_argument("--slots-per-gpu", type=int, metavar="S", help="default: ceil(experts / GPUs)")
    parser.add_argument("--groups", type=int, default=1, metavar="G", help="expert groups of the gate; default: 1")


def _add_goals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", choices=get_args(Policy), default="auto", help="default: auto")
    parser.add_argument("--effort", choices=get_args(Effort), default="refined", help="default: refined")
    parser.add_argument(
        "--coverage",
        choices=get_args(Coverage),
        default="none",
        help="failure domain that every expert must survive; default: none",
    )
    parser.add_argument("--nodes-per-rack", type=int, metavar="N", help="for --coverage rack")
    parser.add_argument(
        "--split", choices=get_args(SplitRule), default="equal", help="which replica tokens go to; default: equal"
    )


def _add_counting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--expert-bytes",
        metavar="SIZE",
        help="size of one expert of one layer, such as 44.05MB: counts moves and slots in bytes",
    )
    parser.add_argument(
        "--step-tokens",
        type=int,
        metavar="N",
        help="tokens of a step over all GPUs: adds what sampling adds to max/mean",
    )
    parser.add_argument("--experts-per-token", type=int, metavar="K", help="for --step-tokens and --groups; default: 8")
    parser.add_argument(
        "--groups-per-token", type=int, metavar="K", help="groups that a token goes to at most; default: half of them"
    )


def _add_previous(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--previous", type=Path, metavar="MAP.json", help="the map in service: change few slots of it")
    parser.add_argument(
        "--keep-within",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="keep a layer's previous map while it is less even than a new one by at most this share; default: 0",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--export", choices=get_args(Engine), help="write -o as this engine reads it")
    parser.add_argument(
        "--first-layer",
        type=int,
        metavar="N",
        help="the first MoE layer's number in the model; default: what a recorded dump tells, else 0",
    )
    parser.add_argument("-o", dest="output", type=Path, metavar="MAP.json", help="write the map here as well")

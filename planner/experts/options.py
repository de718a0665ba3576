"""The options of `tidemill experts`: what its command line accepts, and the call that it is parsed into."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import get_args

from planner.expert_map import Effort, Policy
from planner.experts.call import ExpertsCall
from planner.facts.map_files import Engine

__all__ = ["add_options", "read_call"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add LOADS and the options that only this command has."""
    _add_loads(parser)
    _add_sizes(parser)
    _add_goals(parser)
    _add_previous(parser)
    _add_output(parser)


def read_call(arguments: argparse.Namespace) -> ExpertsCall:
    """Return the parsed call, valid or not."""
    given = {each.name: getattr(arguments, each.name) for each in fields(ExpertsCall)}
    return ExpertsCall(**given | {"loads": tuple(arguments.loads)})


def _add_loads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "loads",
        nargs="+",
        type=Path,
        metavar="LOADS",
        help="token counts [layers][experts], as .npy or JSON; one file for each time window",
    )
    parser.add_argument(
        "--balance",
        default="mean",
        metavar="mean|worst|quantile=Q",
        help="what to balance over several LOADS: their mean, the worst, or a quantile of max/mean; default: mean",
    )


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpus", type=int, required=True, metavar="N", help="number of GPUs to spread the experts over"
    )
    parser.add_argument(
        "--nodes",
        type=int,
        required=True,
        metavar="M",
        help="number of nodes; each holds the same number of these GPUs",
    )
    parser.add_argument(
        "--slots-per-gpu", type=int, metavar="S", help="physical experts per GPU; default: ceil(experts / GPUs)"
    )
    parser.add_argument("--groups", type=int, default=1, metavar="G", help="expert groups of the gate; default: 1")


def _add_goals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        choices=get_args(Policy),
        default="auto",
        help="how to place experts: over all GPUs, or by groups within nodes; default: auto",
    )
    parser.add_argument(
        "--effort",
        choices=get_args(Effort),
        default="refined",
        help="how long to search for a better map; default: refined",
    )


def _add_previous(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--previous",
        type=Path,
        metavar="MAP",
        help="the map now in service (our JSON, or SGLang's file): change few of its slots",
    )
    parser.add_argument(
        "--keep-within",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="keep a layer's previous map if a new one is better balanced by at most this share; default: 0",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--export", choices=get_args(Engine), help="write the file of -o in the format of this engine")
    parser.add_argument(
        "--first-layer",
        type=int,
        metavar="N",
        help="number of the first MoE layer in the model; default: the first with load in SGLang's recording, else 0",
    )
    parser.add_argument("-o", dest="output", type=Path, metavar="MAP.json", help="write the map here as well")

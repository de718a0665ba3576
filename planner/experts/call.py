"""The command line of `tidemill experts`: its options, the parsed arguments, and the rules about them.

A rule is checked only if the sizes that it reads are valid. `experts.py` reads the files.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args

from planner.expert_map import Effort, Policy, Sizes
from planner.facts.map_files import NUMBERED_BY_MODEL, Engine, missing_output
from planner.problems.finding import Finding
from planner.problems.fix import Fix, nearest, nearest_of
from planner.spec.phase import MAX_EP_SIZE, MAX_REDUNDANT

COUNTS = ("gpus", "nodes", "groups", "slots_per_gpu")


@dataclass(frozen=True)
class ExpertsCall:
    """The command's arguments as given."""

    loads: Path
    gpus: int
    nodes: int
    slots_per_gpu: int | None = None
    groups: int = 1
    policy: Policy = "auto"
    effort: Effort = "refined"
    previous: Path | None = None
    export: Engine | None = None
    first_layer: int | None = None  # None: as the files record it
    output: Path | None = None

    def num_slots_per_gpu(self, num_experts: int) -> int:
        """Return the given number of slots per GPU, by default just enough for all experts."""
        return self.slots_per_gpu or -(-num_experts // self.gpus)

    def sizes(self, num_experts: int) -> Sizes:
        """Return the sizes of the map. The gate, for which there is no option, is DeepSeek-V3's."""
        return Sizes(
            num_slots=self.num_slots_per_gpu(num_experts) * self.gpus,
            num_gpus=self.gpus,
            num_nodes=self.nodes,
            num_groups=self.groups,
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add LOADS and the options that only this command has."""
    parser.add_argument("loads", type=Path, metavar="LOADS", help="token counts [layers][experts], as .npy or JSON")
    _add_sizes(parser)
    _add_goals(parser)
    _add_previous(parser)
    _add_output(parser)


def read_call(arguments: argparse.Namespace) -> ExpertsCall:
    """Return the parsed call, valid or not."""
    given = {each.name: getattr(arguments, each.name) for each in fields(ExpertsCall)}
    return ExpertsCall(**given)


def wrong_arguments(
    call: ExpertsCall, num_experts: int | None, first_layer: int | None = None, *, drops_rows: bool = False
) -> Iterator[Finding]:
    """Yield the mistakes in `call`. If `num_experts` is unknown, yield only mistakes that do not depend on it.

    `first_layer` is the first MoE layer by the file LOADS; None if the file does not say. `drops_rows` is True if
    --first-layer made the reader drop rows of dense layers, or if that is unknown.
    """
    out_of_range = [*_less_than_one(call), *_too_many_gpus(call)]
    yield from out_of_range
    wrong = {each.path.removeprefix("--").replace("-", "_") for each in out_of_range}
    if not {"gpus", "nodes"} & wrong:
        yield from _uneven_nodes(call)
    if num_experts is not None:
        yield from _wrong_slots_and_groups(call, num_experts, wrong)
    if call.export is not None and call.output is None:
        yield missing_output(call.export, "the answer", "map.json")
    yield from _wrong_first_layer(call, first_layer, drops_rows=drops_rows)


def _less_than_one(call: ExpertsCall) -> Iterator[Finding]:
    """Yield a finding for each count (of GPUs, nodes, slots, groups) below one."""
    for name in COUNTS:
        count = getattr(call, name)
        if count is not None and count < 1:
            reason = "nothing can be done with fewer"
            yield Finding(f"--{name.replace('_', '-')}", count, "S801 must be at least 1", reason, nearest(1))


def _too_many_gpus(call: ExpertsCall) -> Iterator[Finding]:
    """Yield a finding if there are more GPUs than a unit may have."""
    if call.gpus > MAX_EP_SIZE:
        rule = f"S811 must be at most {MAX_EP_SIZE}, as a unit's ep_size"
        reason = "the experts are spread over the GPUs of a single unit"
        yield Finding("--gpus", call.gpus, rule, reason, nearest(MAX_EP_SIZE))


def _wrong_slots_and_groups(call: ExpertsCall, num_experts: int, wrong: set[str]) -> Iterator[Finding]:
    """Yield findings for slots and groups that do not fit `num_experts`, unless they depend on options in `wrong`."""
    if not {"gpus", "slots_per_gpu"} & wrong:
        yield from _too_few_slots(call, num_experts)
        yield from _too_many_slots(call, num_experts)
    if not {"groups", "nodes"} & wrong:
        yield from _uneven_groups(call, num_experts)


def _wrong_first_layer(call: ExpertsCall, recorded: int | None, *, drops_rows: bool) -> Iterator[Finding]:
    """Yield the mistake in --first-layer, if it is given: too low, too high, or without effect.

    `recorded` is the first layer in LOADS that has load; None if LOADS are no recording.
    """
    if call.first_layer is None:
        return
    if call.first_layer < 0:
        rule, reason = "S810 must be at least 0", "layers are numbered from 0"
        yield Finding("--first-layer", call.first_layer, rule, reason, nearest(0))
        return
    if recorded is not None and call.first_layer > recorded:
        rule = f"S828 must be at most {recorded}, the first layer of LOADS that has load"
        reason = "SGLang records a row for every layer, and those that record nothing come first"
        yield Finding("--first-layer", call.first_layer, rule, reason, nearest(recorded))
        return
    counts = drops_rows or recorded is not None or call.previous is not None or call.export in NUMBERED_BY_MODEL
    if call.first_layer > 0 and not counts:
        rule = f"S820 has no effect without --export {' or '.join(NUMBERED_BY_MODEL)}, or --previous"
        reason = "no row has the number of a layer then"
        yield Finding("--first-layer", call.first_layer, rule, reason, _offer_removal("--first-layer"))


def _uneven_nodes(call: ExpertsCall) -> Iterator[Finding]:
    if call.gpus % call.nodes:
        rule = f"S802 must be a multiple of --nodes ({call.nodes})"
        fix = _nearest_multiples(call.gpus, call.nodes)
        yield Finding("--gpus", call.gpus, rule, "every node has the same number of GPUs", fix)


def _too_few_slots(call: ExpertsCall, num_experts: int) -> Iterator[Finding]:
    fewest = -(-num_experts // call.gpus)
    if call.slots_per_gpu is not None and call.slots_per_gpu < fewest:
        rule = f"S803 must be at least {fewest} ({num_experts} experts on {call.gpus} GPUs)"
        reason = f"{call.slots_per_gpu * call.gpus} slots cannot hold {num_experts} experts"
        yield Finding("--slots-per-gpu", call.slots_per_gpu, rule, reason, nearest(fewest))


def _too_many_slots(call: ExpertsCall, num_experts: int) -> Iterator[Finding]:
    most = (num_experts + MAX_REDUNDANT) // call.gpus
    if call.slots_per_gpu is not None and call.slots_per_gpu > most:
        rule = f"S812 must be at most {most} ({num_experts} + {MAX_REDUNDANT} redundant experts on {call.gpus} GPUs)"
        reason = "a unit cannot have more redundant experts"
        yield Finding("--slots-per-gpu", call.slots_per_gpu, rule, reason, nearest(most))


def _uneven_groups(call: ExpertsCall, num_experts: int) -> Iterator[Finding]:
    if num_experts % call.groups:
        divisors = [size for size in range(1, num_experts + 1) if num_experts % size == 0]
        rule = f"S804 must divide the number of experts ({num_experts})"
        fix = nearest_of(call.groups, divisors)
        yield Finding("--groups", call.groups, rule, "every group has the same number of experts", fix)
    elif call.policy == "hierarchical" and call.groups % call.nodes:
        rule = f"S805 must be a multiple of --nodes ({call.nodes}) with --policy hierarchical"
        fitting = [size for size in range(call.nodes, num_experts + 1, call.nodes) if num_experts % size == 0]
        fix = _fitting_groups(call.groups, fitting)
        yield Finding("--groups", call.groups, rule, "every node holds the same number of whole groups", fix)


def _nearest_multiples(value: int, unit: int) -> Fix:
    """Return a fix that names the multiples of `unit` on both sides of `value`."""
    below = value - value % unit
    return nearest_of(value, [multiple for multiple in (below, below + unit) if multiple])


def _fitting_groups(groups: int, fitting: Sequence[int]) -> Fix:
    """Offer the numbers in `fitting` nearest to `groups`, if there are any, and --policy global, which ignores them."""
    ignored = Fix("use --policy global", ({"--policy": "global"},))
    if not fitting:
        return ignored
    numbers = nearest_of(groups, fitting)
    return Fix(f"{numbers}, or --policy global", (*numbers.changes, *ignored.changes))


def _offer_removal(option: str) -> Fix:
    return Fix(f"leave {option} out", ({option: None},))


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


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--export", choices=get_args(Engine), help="write the file of -o in the format of this engine")
    parser.add_argument(
        "--first-layer",
        type=int,
        metavar="N",
        help="number of the first MoE layer in the model; default: the first with load in SGLang's recording, else 0",
    )
    parser.add_argument("-o", dest="output", type=Path, metavar="MAP.json", help="write the map here as well")

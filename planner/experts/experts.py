"""Make one expert map from a load matrix and sizes, for `tidemill experts`.

This is the balancer without a spec, for loads measured on a running engine. All mistakes of a call are reported at once
(`call.py`). Nothing here prints or reads a clock (`cli.py` does both), and `answer.py` formats the answer.

Example: 256 experts on 32 GPUs of 4 nodes. Without --slots-per-gpu each GPU has ceil(256 / 32) = 8 slots, and every
expert has one replica; with --slots-per-gpu 9 there are 288 slots, 32 of them redundant.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.expert_map import ExpertMap, Sizes, balance
from planner.experts.call import ExpertsCall, wrong_arguments
from planner.facts.loads import LoadFile, Loads, moe_rows, read_loads, row_without_load
from planner.facts.map_files import Map, MapFile, read_map
from planner.problems.errors import CallError
from planner.problems.finding import Finding

LOADS = "LOADS"  # as the command's help calls its argument
PROGRAM = "tidemill experts"


@dataclass(frozen=True)
class ExpertsJob:
    """A valid call, with the contents of its files."""

    call: ExpertsCall
    loads: Loads
    first_layer: int  # the model's number of the first MoE layer
    previous: Map | None

    @property
    def num_experts(self) -> int:
        """Return the number of logical experts of a layer."""
        return len(self.loads[0])

    @property
    def sizes(self) -> Sizes:
        """Return the sizes of the map."""
        return self.call.sizes(self.num_experts)


def check_call(call: ExpertsCall) -> ExpertsJob:
    """Return the job that `call` and its files describe. Raises CallError with all mistakes in them."""
    measured = _read_loads(call)
    found = read_map(call.previous) if call.previous else None
    findings = [finding.at(PROGRAM) for finding in _wrong_arguments(call, measured)]
    if isinstance(measured, Finding):
        findings.append(measured)
    previous = found
    if isinstance(found, MapFile) and not findings and isinstance(measured, _MeasuredLoads):
        previous = _fit_previous(found, measured, call)
    if isinstance(previous, Finding):
        findings.append(previous.at(str(call.previous)))
    if findings or isinstance(measured, Finding) or isinstance(previous, Finding):
        raise CallError(findings)
    first_layer = _first_layer(call, measured, found)
    return ExpertsJob(call, measured.loads, first_layer, previous.rows if previous else None)


def make_map(job: ExpertsJob) -> ExpertMap:
    """Return the balanced expert map for `job`."""
    call = job.call
    return balance(
        job.loads,
        job.sizes.num_slots,
        call.gpus,
        call.effort,
        num_nodes=call.nodes,
        num_groups=call.groups,
        policy=call.policy,
        previous=job.previous,
    )


@dataclass(frozen=True)
class _MeasuredLoads:
    """The loads of the MoE layers in LOADS, and the number of the first MoE layer if the file records it."""

    loads: Loads
    first_layer: int | None
    drops_rows: bool  # whether rows of dense layers were dropped, as only --first-layer tells


def _read_loads(call: ExpertsCall) -> _MeasuredLoads | Finding:
    """Return the loads in the file, or the mistake in it."""
    measured = read_loads(call.loads, str(call.loads), option=LOADS)
    if isinstance(measured, Finding):
        return measured.at(str(call.loads))
    loads = _select_moe_rows(call.first_layer, measured)
    num_dense = 0 if measured.first_layer is not None else call.first_layer or 0
    drops_rows = 0 < num_dense < len(loads) and not any(map(any, loads[:num_dense]))
    of_moe = loads[num_dense if drops_rows else 0 :]
    if (row := row_without_load(of_moe)) is not None:
        return _not_recorded(call.loads, row + len(measured.rows) - len(of_moe), of_moe).at(str(call.loads))
    return _MeasuredLoads(of_moe, measured.first_layer, drops_rows=drops_rows)


def _select_moe_rows(first_layer: int | None, measured: LoadFile) -> Loads:
    """Return the rows of MoE layers, which begin at `first_layer`, by default at the first layer with load.

    Rows of zeros from `first_layer` on belong to layers that a hash table routes; they become equal loads.
    """
    if first_layer is None or measured.first_layer is None or not 0 <= first_layer < measured.first_layer:
        return measured.loads
    hashed = [layer < measured.first_layer for layer in range(first_layer, len(measured.rows))]
    return moe_rows(measured.rows[first_layer:], 0, hashed)


def _not_recorded(path: Path, row: int, loads: Loads) -> Finding:
    rule = f"S606 must have load in every MoE layer, and its row {row} has none"
    num_dense = next((index for index, each in enumerate(loads) if any(each)), 0)
    fix = "record the loads again, in every layer"
    if row == 0 and row_without_load(loads[num_dense:]) is None:
        fix = f"give --first-layer {num_dense} if its first rows are of dense layers, else {fix}"
    return Finding(LOADS, str(path), rule, "a layer to which nothing was routed was not recorded", fix)


def _wrong_arguments(call: ExpertsCall, measured: _MeasuredLoads | Finding) -> Iterator[Finding]:
    """Yield the mistakes in `call`. Mistakes that depend on LOADS are found only if LOADS are readable."""
    if isinstance(measured, Finding):  # then nobody knows whether --first-layer drops rows
        return wrong_arguments(call, None, drops_rows=True)
    num_experts = len(measured.loads[0])
    return wrong_arguments(call, num_experts, measured.first_layer, drops_rows=measured.drops_rows)


def _first_layer(call: ExpertsCall, measured: _MeasuredLoads, previous: MapFile | Finding | None) -> int:
    """Return the index of the first MoE layer, from --first-layer, the recording or the previous map; else 0."""
    if call.first_layer is not None:
        return call.first_layer
    if measured.first_layer is not None:
        return measured.first_layer
    return previous.num_dense_layers(len(measured.loads)) if isinstance(previous, MapFile) else 0


def _fit_previous(previous: MapFile, measured: _MeasuredLoads, call: ExpertsCall) -> MapFile | Finding:
    """Return the MoE layers of the previous map, or the finding that it does not fit these loads and sizes."""
    num_layers, num_experts = len(measured.loads), len(measured.loads[0])
    num_slots = call.gpus * call.num_slots_per_gpu(num_experts)
    num_dense = previous.num_dense_layers(num_layers)
    rows = previous.rows[num_dense:] if num_dense == _first_layer(call, measured, previous) else previous.rows
    written = str(call.previous)
    rule = f"S807 must have shape [{num_layers}][{num_slots}] (layers, slots) and hold each of {num_experts} experts"
    fix = "give the map now in service, or leave it out"
    if (len(rows), len(rows[0])) != (num_layers, num_slots):
        return Finding("--previous", written, rule, f"it has [{len(rows)}][{len(rows[0])}]", fix)
    for layer, experts in enumerate(rows):
        if wrong := sorted(set(experts) ^ set(range(num_experts))):
            return Finding("--previous", written, rule, f"layer {layer} differs in expert {wrong[0]}", fix)
    return MapFile(rows)

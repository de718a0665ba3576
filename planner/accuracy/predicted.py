"""Predict published rows as a plan would: from their spec, with its expert map, its drift and its memory.

Three facts of a row are in no spec. The engine may be one that no spec can name. A benchmark may have routed evenly, so
that no expert was hotter than another. An engine may have been told which share of memory to use, where a plan chooses
the share itself.
"""

import json
from dataclasses import dataclass, replace
from functools import cache, cached_property

from planner.accuracy.rows import Figure, PublishedRow
from planner.candidate.candidate import Candidate
from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.engines import EngineModel, engine_model
from planner.estimate.throughput.intervals import Estimate
from planner.estimate.throughput.predict import Case, Prediction, predict
from planner.estimate.throughput.stages import Imbalance
from planner.facts.quantities import MS_PER_S
from planner.layout.memory import RESERVE_BYTES, MemoryPlan
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.rules.check import check_document
from planner.spec.declared import undecided_in
from planner.spec.yaml import parse_document

GIB = 2**30
# What the driver and collectives hold of a GPU before weights are loaded, in the same units as SGLang's share:
# 12.25 + 125.65 of 139.81 GiB remain: github.com/SemiAnalysisAI/InferenceX issue 2128
SGLANG_START = int(1.91 * GIB)
# Of the planner's reserve, the driver's context is outside vLLM's share, 79.18 - 78.57 GiB:
# github.com/llm-d/llm-d-benchmark 87ab01be config_explorer/empirical-vllm-memory-results.md
VLLM_CONTEXT = int(0.61 * GIB)
POINT = "operating_point"


@dataclass(frozen=True)
class Predicted:
    """A row of measurements and its predictions, on the row's engine or on an engine with other constants."""

    row: PublishedRow

    @property
    def candidate(self) -> Candidate:
        """The candidate of the row's spec without the operating point.

        Raises SpecError if the spec breaks rules, and CallError if the spec has an `auto` or lacks the row's phase.
        """
        candidate = _candidate(json.dumps({key: value for key, value in self.row.spec.items() if key != POINT}))
        if path := next(undecided_in(candidate.spec), None):
            rule = "S915 must be of a spec without auto"
            raise _wrong_row(self.row, rule, f"its {path} is auto, but what ran had a number", "write that number")
        if self.row.phase not in candidate.spec.phases:
            rule, has = "S915 must be of a phase of its spec", " and ".join(candidate.spec.phases)
            raise _wrong_row(self.row, rule, f"its spec has {has}, not {self.row.phase}", "correct its phase")
        return candidate

    @property
    def gpu(self) -> str:
        """Return the name of the GPU that was measured."""
        return self.candidate.spec.gpu_name(self.row.phase)

    @property
    def model(self) -> str:
        """Return the name of the model that was measured."""
        written = self.candidate.spec.model
        return written if isinstance(written, str) else str(written.catalog or written.config)

    @property
    def engine(self) -> str:
        """Return the name of the engine that was measured."""
        return self.row.engine or self.candidate.spec.engine_name

    @property
    def why_not(self) -> str | None:
        """Return the reason why no speed is predicted, or None if one is."""
        return self._outlook.why_not

    def case(self, engine: EngineModel | None = None) -> Case:
        """Return the speed model's input for the row, on the row's engine or on `engine` if given."""
        case = self._outlook.case
        assert case is not None
        case = replace(case, engine=case.engine if engine is None else engine.restrict_to(self.gpu))
        if not self.row.even_routing:
            return case
        return replace(case, imbalance=Imbalance(), engine=replace(case.engine, imbalance={}))

    def estimates(self, engine: EngineModel | None = None) -> dict[Figure, Estimate]:
        """Return measured figure -> its prediction, on the row's engine or on `engine` if given.

        Figures that cannot be predicted are left out.
        """
        found = ((name, self._estimate(name, engine)) for name in self.row.measured)
        return {name: estimate for name, estimate in found if estimate is not None}

    def _estimate(self, figure: Figure, engine: EngineModel | None) -> Estimate | None:
        if figure in ("weights_gib", "kv_tokens"):
            plan = next((each for each in self.candidate.memory if each.phase == self.row.phase), None)
            if plan is None:  # on a CPU
                return None
            exact = plan.weight_bytes / GIB if figure == "weights_gib" else float(self._kv_tokens(plan))
            return Estimate(exact, exact, exact)
        predicted = self._outlook.prediction
        if predicted is not None and (engine is not None or self.row.even_routing):
            predicted = predict(self.case(engine), predicted.evidence)
        return None if predicted is None else _speed(predicted, figure)

    def _kv_tokens(self, plan: MemoryPlan) -> int:
        """Return how many tokens of KV fit, into the row's share of memory if it has one.

        SGLang's share is of the memory that is free at its start, and is for weights and KV. vLLM's share is of all
        memory, and is for all but the driver's context and CUDA graphs.
        """
        share = self.row.memory_share
        if share is None:
            return plan.kv_tokens
        if self.engine == "sglang":
            return plan.tokens_in(int(share * (plan.gpu_bytes - SGLANG_START)) - plan.weight_bytes)
        beside = plan.weight_bytes + plan.activations + plan.buffers + RESERVE_BYTES - VLLM_CONTEXT
        return plan.tokens_in(int(share * plan.gpu_bytes) - beside)

    @cached_property
    def _outlook(self) -> PhaseOutlook:
        change = {POINT: self.row.spec[POINT]} if POINT in self.row.spec else {}
        return self.candidate.predict_on(engine_model(self.engine), self.row.phase, change)


@cache
def _candidate(spec: str) -> Candidate:
    """Return the candidate of `spec`, a spec as JSON text.

    Results are cached, so rows whose specs differ only in the operating point share one candidate and its expert maps.
    """
    return Candidate.of(check_document(parse_document(spec, "spec")))


def _wrong_row(row: PublishedRow, rule: str, reason: str, fix: str) -> CallError:
    return CallError([Finding("rows", row.name, rule, reason, fix).at("tidemill accuracy")])


def _speed(found: Prediction, figure: Figure) -> Estimate | None:
    if figure == "tokens_per_s_per_gpu":
        return found.tokens_per_s_per_gpu
    seconds = found.tpot_seconds if figure == "tpot_ms" else found.ttft_seconds
    return None if seconds is None else seconds.times(MS_PER_S)

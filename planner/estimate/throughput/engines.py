"""Read an engine's constants: the overheads that it adds to its kernels, fitted to published results (`engines.json`).

The same model of a step serves all engines. Each engine has these constants:
    between_us     overhead of a layer and micro-batch of decode: launches, norms, the gate
    beside         factor on the time of prefill's kernels while exchanges run beside them
    host_ms        host overhead of a step
    skew_us        wait of a layer of decode for the slowest rank, where ranks exchange rows
    imbalance      load of the fullest GPU over the load predicted from the expert map, where prompts are computed
    core_share     efficiency of its core attention, if the engine has its own kernel for that
    alone          measured over predicted time of one GPU without exchanges; shown to users, not used for predictions
    factor         measured over predicted throughput, if nothing more detailed is published; on GPUs with like kernels

`planner/accuracy` holds the measured rows, fits the constants, and predicts each row without its source. For an engine
without rows, the constants of DeepSeek's engine are used, whose kernels it runs, and its predictions say so.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from planner.estimate.throughput.stages import Overheads
from planner.facts.catalog import GPUS
from planner.facts.terms import Phase


@dataclass(frozen=True)
class EngineModel:
    """An engine's constants, and the GPUs on which the engine was measured, by phase."""

    name: str
    overheads: Overheads
    imbalance: Mapping[Phase, float]
    core_share: float | None
    factor: Mapping[Phase, float]
    measured_on: Mapping[Phase, tuple[str, ...]]
    as_engine: str | None  # the engine whose constants are used instead of its own
    alone: Mapping[Phase, float] = field(default_factory=dict)  # measured over predicted time of one GPU, no exchanges
    alone_on: str = ""  # the GPU on which `alone` was measured

    def restrict_to(self, gpu: str) -> "EngineModel":
        """Return the engine's constants for `gpu`.

        Factors of phases that were measured only on GPUs with other kernels are left out. Engines have other kernels
        for attention, experts and exchange where matmuls take FP4.
        """
        kept = {
            phase: factor
            for phase, factor in self.factor.items()
            if any(_takes_fp4(each) == _takes_fp4(gpu) for each in self.measured_on.get(phase, (gpu,)))
        }
        return replace(self, factor=kept)


@cache
def engine_model(name: str) -> EngineModel:
    """Return the constants of the engine `name`: an engine that specs may choose, or a published system."""
    return read_engine(engines_json(), name)


def read_engine(document: Any, name: str) -> EngineModel:
    """Return the constants of engine `name` from a `document` like `engines.json`.

    An engine that is not in the document gets the defaults. An engine with `as` borrows the overheads and the imbalance
    of another.
    """
    own = document["engines"].get(name, {})
    borrowed = own.get("as")
    values = document["defaults"] | (document["engines"][borrowed] if borrowed else {}) | own
    return EngineModel(
        name=name,
        overheads=Overheads(
            between_us=values["between_us"],
            prompt_between_us=values["prompt_between_us"],
            beside=values["beside"],
            host_ms=values["host_ms"],
            skew_us=0.0 if borrowed else values.get("skew_us", 0.0),
        ),
        imbalance=values.get("imbalance", {}),
        core_share=None if borrowed else values.get("core_share"),
        factor={} if borrowed else values.get("factor", {}),
        measured_on={phase: tuple(gpus) for phase, gpus in own.get("measured_on", {}).items()},
        as_engine=borrowed,
        alone=own.get("alone", {}),
        alone_on=own.get("alone_on", ""),
    )


def _takes_fp4(gpu: str) -> bool:
    return gpu in GPUS and GPUS[gpu].fp4_tflops is not None


@cache
def engines_json() -> Any:
    """Return the content of `engines.json`: the constants of each engine."""
    return json.loads(files("planner.estimate.throughput").joinpath("engines.json").read_text())

"""What an engine adds to its kernels, fitted to its own published results (`engines.json`).

Mechanisms are shared by all engines. An engine has
    between_us     a layer and micro-batch of decode: launches, norms, the gate
    beside         how much slower prefill's kernels run while exchanges run beside them
    host_ms        a step, on the host
    imbalance      how much fuller its fullest GPU is than the plan's map says
    core_share     where its core attention is another kernel than the GPU's constants are of
    alone          how many times as long as predicted one GPU computed, which is told and changes no prediction
    factor         throughput that it reaches of what mechanisms say, where nothing more is published: on that GPU only

`tests/benchmarks/throughput.py` fits them, prints what each row would be predicted without itself, and is where the
rows stand. An engine without rows of its own is taken to add what DeepSeek's does, whose kernels it runs, and its
predictions say so.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from planner.estimate.throughput.stages import Overheads
from planner.facts.terms import Phase

__all__ = ["EngineModel", "engine_model", "engines_json"]


@dataclass(frozen=True)
class EngineModel:
    """An engine's constants, and the rows that they rest on: phase -> GPUs that it was measured on."""

    name: str
    overheads: Overheads
    imbalance: Mapping[Phase, float]
    core_share: float | None
    factor: Mapping[Phase, float]
    measured_on: Mapping[Phase, tuple[str, ...]]
    as_engine: str | None  # whose constants it borrows
    alone: Mapping[Phase, float] = field(default_factory=dict)  # times as predicted that one GPU computed, no exchanges
    alone_on: str = ""  # the GPU


@cache
def engine_model(name: str, gpu: str) -> EngineModel:
    """Return the constants of the engine called `name` on a GPU: one of a spec, or a system that was published."""
    document = engines_json()
    own = document["engines"].get(name, {})
    if gpu not in own.get("only_on", [gpu]):
        own = {"as": "deepseek"}
    borrowed = own.get("as")
    values = document["defaults"] | (document["engines"][borrowed] if borrowed else {}) | own
    return EngineModel(
        name=name,
        overheads=Overheads(values["between_us"], values["prompt_between_us"], values["beside"], values["host_ms"]),
        imbalance=values.get("imbalance", {}),
        core_share=None if borrowed else values.get("core_share"),
        factor={} if borrowed else values.get("factor", {}),
        measured_on={phase: tuple(gpus) for phase, gpus in own.get("measured_on", {}).items()},
        as_engine=borrowed,
        alone=own.get("alone", {}),
        alone_on=own.get("alone_on", ""),
    )


@cache
def engines_json() -> Any:
    """Return the document of constants, with the rows that they were fitted to."""
    return json.loads(files("planner.estimate.throughput").joinpath("engines.json").read_text())

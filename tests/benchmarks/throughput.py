"""Fits what engines add to their kernels, and prints what each published row would be predicted without itself.

    python -m tests.benchmarks.throughput            # errors; exits with 1 where a goal is missed
    python -m tests.benchmarks.throughput --write    # fits, and writes engines.json

One constant is fitted to one row: the engine's rows of other phases keep it unchanged. DeepSeek's service is predicted
with constants that know nothing of it, apart from its prefill's `utilisation`, which is what is fitted there.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from planner.estimate.throughput.engines import EngineModel, engine_model
from planner.estimate.throughput.predict import saturated_rate
from planner.estimate.throughput.stages import Imbalance, Overheads
from tests.benchmarks.goals import Goals
from tests.benchmarks.throughput_rows import (
    ASIDE,
    MOREH,
    PROFILE_DECODE,
    PROFILE_PREFILL,
    ROWS,
    SGLANG_BALANCED,
    SGLANG_DRAFTS,
    SGLANG_REAL,
    SGLANG_REAL_4K,
    Row,
    service_decode,
    service_prefill,
)

OUTPUT = Path(__file__).parents[2] / "planner" / "estimate" / "throughput" / "engines.json"
HOST_MS = 1.0  # assumed: of a step
HOST_ALONE_MS = 2 / 51.0 * 1e3 - 2 / 60.4 * 1e3  # more, where it does not overlap the GPU: SGLANG_DRAFTS' source
CORE_580 = 580 / 989  # core attention of February 2025: github.com/sazczmh/FlashMLA README.md, a copy of the first
# Measured turn over predicted compute: docs/performance.md, "One rank on an H100", 2,600 / 1,339 and 73.8 / 51.3 ms.
ALONE = {"prefill": 1.94, "decode": 1.44}
# Of the maps that deepseek-h800.yaml gets, with drift and luck (`tests/planner/estimate/throughput`).
SERVICE_DECODE, SERVICE_PREFILL = Imbalance(1.697), Imbalance(1.052)


def engine(name: str, **changes: Any) -> EngineModel:
    """Return an engine whose constants are known so far."""
    overheads = Overheads(
        *(changes.get("between_us", 0.0), 0.0, changes.get("beside", 1.0), changes.get("host_ms", HOST_MS))
    )
    return EngineModel(
        name, overheads, changes.get("imbalance", {}), changes.get("core_share"), changes.get("factor", {}), {}, None
    )


def solve(row: Row, make: Callable[[float], EngineModel], low: float, high: float) -> float:
    """Return the constant with which `row` is predicted as published, by halving; a larger one makes it slower."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if row.error(make(middle)) > 0 else (low, middle)
    return round((low + high) / 2, 4)


def fitted() -> dict[str, Any]:
    """Return engines.json."""
    core = round(CORE_580, 4)
    beside = solve(PROFILE_PREFILL, lambda each: engine("deepseek", beside=each), 1, 2)
    between = solve(PROFILE_DECODE, lambda each: engine("deepseek", between_us=each, core_share=core), 0, 200)
    theirs = solve(SGLANG_BALANCED, lambda each: engine("sglang", beside=each), 1, 2)
    excess = sglang_excess(SGLANG_REAL_4K, theirs)
    vllm = 1 / (1 + MOREH.error(engine("vllm", between_us=between)))
    own = {"between_us": between, "beside": beside}
    service = service_prefill(SERVICE_PREFILL)
    utilisation = 1 / (1 + service.error(engine("deepseek", **own)))
    return {
        "written_by": "python -m tests.benchmarks.throughput --write",
        "defaults": {"between_us": between, "prompt_between_us": 0.0, "beside": beside, "host_ms": HOST_MS},
        "engines": {
            "deepseek": own | {"core_share": core, "measured_on": {"prefill": ["h800"], "decode": ["h800"]}},
            "sglang": {
                "beside": theirs,
                "imbalance": {"prefill": excess, "decode": excess, "mixed": excess},
                "measured_on": {"prefill": ["h100"]},
            },
            "vllm": {
                "factor": {"decode": round(vllm, 4)},
                "only_on": ["mi300x"],
                "measured_on": {"decode": ["mi300x"]},
            },
            "tidemill": {"as": "deepseek", "alone": ALONE, "alone_on": "h100"},
        },
        "service": {"prefill_utilisation": round(utilisation, 4)},
        "rows": [
            {"name": row.name, "engine": row.engine, "gpu": row.gpu, "tokens_per_s_per_gpu": round(row.measured, 1)}
            for row in ROWS
        ],
    }


def sglang_excess(row: Row, beside: float) -> float:
    """Return how much fuller than the map says SGLang's fullest GPU is, for a row with real routing."""
    return solve(row, lambda each: engine("sglang", beside=beside, imbalance={"prefill": each}), 1, 4)


def without(row: Row, document: Any) -> EngineModel:
    """Return the engine as it would be known if `row` had not been published."""
    engines, defaults = document["engines"], document["defaults"]
    core, theirs = engines["deepseek"]["core_share"], engines["sglang"]["beside"]
    of_2k = sglang_excess(SGLANG_REAL, theirs)
    known = {
        PROFILE_PREFILL: engine("deepseek", beside=theirs),
        PROFILE_DECODE: engine("deepseek", core_share=core),
        SGLANG_BALANCED: engine("sglang", beside=engines["deepseek"]["beside"]),
        SGLANG_REAL_4K: engine("sglang", beside=theirs, imbalance={"prefill": of_2k}),
        SGLANG_REAL: engine_model("sglang", "h100"),  # nothing is fitted to it
        MOREH: engine("vllm", between_us=defaults["between_us"]),
    }
    return known[row]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        OUTPUT.write_text(json.dumps(fitted(), indent=1) + "\n")
    document, goals = json.loads(OUTPUT.read_text()), Goals()
    tell_rows(document, goals)
    tell_rows_aside(document, goals)
    tell_drafts()
    tell_service()
    return goals.report()


def tell_rows(document: Any, goals: Goals) -> None:
    """Print the rows, each with its engine's constants and without those that it gives."""
    left_out = {"prefill": [], "decode": []}
    print(f"{'row':44} {'tokens/s a GPU':>14} {'fitted':>8} {'left out':>9}")
    for row in ROWS:
        own, other = row.error(), row.error(without(row, document))
        left_out[row.phase].append(abs(other))
        print(f"{row.name:44} {row.measured:14,.0f} {own:+8.1%} {other:+9.1%}")
        goals.check(f"{row.name}, as fitted", abs(own), "<=", 0.08)
    for phase, errors in left_out.items():
        print(f"{phase}: left out, mean {sum(errors) / len(errors):.1%}, worst {max(errors):.1%}")


def tell_rows_aside(document: Any, goals: Goals) -> None:
    """Print the rows that nothing is fitted to, and what real routing costs an engine that nobody measured with it."""
    for row in ASIDE:
        print(f"{row.name:44} {row.measured:14,.0f} {'':8} {row.error():+9.1%}")
        goals.check(f"{row.name}, kept aside", abs(row.error()), "<=", 0.08)
    for row in (SGLANG_REAL_4K, SGLANG_REAL):
        unknown = row.error(engine("sglang", beside=document["engines"]["sglang"]["beside"]))
        print(f"{row.name:44} {'':14} {'':8} {unknown:+9.1%} if no real routing had been published of SGLang")


def tell_drafts() -> None:
    """Print what a draft is predicted to gain where its acceptance rate was not published: such a row tests nothing."""
    sglang = engine_model("sglang", "h200")
    overheads = replace(sglang.overheads, host_ms=sglang.overheads.host_ms + HOST_ALONE_MS)
    alone = SGLANG_DRAFTS.case(replace(sglang, overheads=overheads))
    for acceptance_rate in (0.69, 0.85, 0.9):
        point = replace(alone.point, draft_tokens=1, acceptance_rate=acceptance_rate)
        gain = saturated_rate(replace(alone, point=point)) / saturated_rate(alone) - 1
        print(f"{SGLANG_DRAFTS.name}, {acceptance_rate:.0%} of them right: {gain:+.1%}, published +14.2%")


def tell_service() -> None:
    """Print DeepSeek's decode at the requests that its rate and its speed allow."""
    for name, requests in product(("deepseek", "tidemill"), (84, 88, 92, 96)):
        row = service_decode(requests, SERVICE_DECODE)
        rate = saturated_rate(row.case(engine_model(name, "h800")))
        error, tpot_ms = row.error(engine_model(name, "h800")), requests / rate * 1e3
        print(
            f"service, decode as {name}, {requests} requests: {8 * rate:,.0f} a node ({error:+.1%}), {tpot_ms:.1f} ms"
        )


if __name__ == "__main__":
    sys.exit(main())

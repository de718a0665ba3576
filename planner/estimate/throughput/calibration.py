"""Correct predictions with a user's own measurements: one factor per phase, with the error before and after.

The file is JSON, one of
    rows                    [{"phase": "decode", "requests": 88, "kv_tokens": 4989, "tpot_ms": 47.6}, ...]
    SGLang's bench_serving  one result, or a line for each: `mean_tpot_ms`, `mean_ttft_ms`, `random_input_len`, ...
    aiperf's export         `inter_token_latency`, `time_to_first_token`, each with `avg` in ms

A row has its phase and `tokens_per_s_per_gpu`, or `tpot_ms` for decode and mixed units. It may also have fields of the
operating point at which it was measured; missing fields are taken from the plan. The factor is the geometric mean of
measured over predicted speed. It replaces the engine's known factor, and the plan says so. A row that is faster than
any kernel could be is refused: most likely its time is in another unit.

Sources: github.com/sgl-project/sglang 0.5.23 python/sglang/bench_serving.py (what it writes);
docs.nvidia.com/aiperf/reference/json-export-schema (each metric has its `unit`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import exp, fsum, log
from pathlib import Path
from typing import Any

from planner.estimate.throughput.intervals import Evidence
from planner.estimate.throughput.point import OperatingPoint
from planner.estimate.throughput.predict import Case, overhead_free_rate, saturated_rate
from planner.facts.digest import digest_of_bytes
from planner.facts.files import read_file
from planner.facts.part import Digest, Part
from planner.facts.quantities import MS_PER_S
from planner.facts.strict_json import reject_repeats
from planner.facts.terms import PHASES, Phase
from planner.problems.errors import CallError
from planner.problems.finding import Finding

MAX_BYTES = 10_000_000
MAX_ROWS = 1000  # assumed: more than anybody measures; predicting a row takes 0.3 ms
MEASURED = (1e-6, 1e9)  # accepted range of any measurement: real ones are well inside, and figures stay finite
FIX = "see docs/calibration.md"
NO_ROWS = "S915 must hold measurements of the plan's phases"
SHARE = (0.0, 0.999)  # accepted range of cache hit rate and acceptance rate, as in the spec
PLAN_FIELDS = {"is_derived", "utilisation", "draft_tokens", "cache_read_gbps"}  # always taken from the plan
POINT_FIELDS = frozenset(each.name for each in fields(OperatingPoint)) - PLAN_FIELDS
MAX_SPEEDUP = 10.0  # assumed: over measured kernels without overheads; seconds written as ms would be 1,000


@dataclass(frozen=True)
class Measurement:
    """One measured row. `phase` is None if the file does not name it: service benchmarks measure decode's TPOT."""

    phase: Phase | None
    point: Mapping[str, Any]  # fields of an operating point
    tokens_per_s_per_gpu: float | None
    tpot_ms: float | None


@dataclass(frozen=True)
class Calibration:
    """A user's measurements, as read from one file."""

    name: str  # the path that the user gave
    digest: str
    rows: tuple[Measurement, ...]


class Correction(Part):
    """The factor by which a file of measurements corrects one phase, and the errors before and after.

    Errors are means of |predicted / measured - 1|.
    """

    file: str
    digest: Digest
    num_rows: int
    factor: float
    error_before: float
    error_after: float


def read_calibration(path: Path) -> Calibration:
    """Return the measurements in the file at `path`. Raises CallError if there are none."""
    try:
        content = read_file(path, MAX_BYTES)
    except OSError as error:
        raise _calibration_error(
            path, "S914 must be a readable file", error.strerror or str(error), "choose another"
        ) from None
    try:
        documents = _parse_documents(content.decode())
        if len(documents) > MAX_ROWS:
            raise ValueError(f"it has {len(documents):,} rows, and at most {MAX_ROWS:,} are read")
        rows = tuple(_measurements(documents))
    except UnicodeDecodeError:
        raise _calibration_error(path, "S915 must hold measurements, as JSON", "it is no text in UTF-8", FIX) from None
    except (ValueError, RecursionError) as error:
        rule = "S915 must hold measurements, as JSON"
        raise _calibration_error(path, rule, str(error) or "it has another form", FIX) from None
    if not rows:
        raise _calibration_error(path, "S915 must hold measurements, as JSON", "it has none", FIX)
    return Calibration(str(path), digest_of_bytes(content), rows)


def calibrate(case: Case, evidence: Evidence, calibration: Calibration) -> tuple[Case, Evidence, Correction | None]:
    """Return (the case corrected by the file's factor, evidence that names the file, the correction).

    If the file has no row of the phase, case and evidence are unchanged and the correction is None. Raises CallError
    for an implausible row.
    """
    rows = [row for row in calibration.rows if _covers_phase(row, case.phase)]
    if not rows:
        return case, evidence, None
    ratios = [_measured_over_predicted(row, case, calibration) for row in rows]
    factor = exp(fsum(map(log, ratios)) / len(ratios))
    old = case.engine.factor.get(case.phase, 1.0)
    engine = replace(case.engine, factor={**case.engine.factor, case.phase: old * factor})
    correction = Correction(
        file=calibration.name,
        digest=calibration.digest,
        num_rows=len(ratios),
        factor=factor,
        error_before=_mean_error(ratios, 1.0),
        error_after=_mean_error(ratios, factor),
    )
    why = f"it is calibrated with {len(ratios)} measurement{'' if len(ratios) == 1 else 's'} of {calibration.name}"
    measured = (min(ratios) / factor, max(ratios) / factor)
    evidence = replace(evidence, family="same engine and GPU", why=why, unexplained=0.0, measured=measured)
    return replace(case, engine=engine), evidence, correction


def require_rows(calibration: Calibration, phases: Sequence[Phase]) -> None:
    """Raise CallError if no measured row is of any of `phases`, because the file would then change nothing."""
    if any(_covers_phase(row, phase) for row in calibration.rows for phase in phases):
        return
    of = " and ".join(dict.fromkeys(row.phase or "decode or mixed units" for row in calibration.rows))
    reason = f"its rows are of {of}, and the plan has {' and '.join(phases)}"
    raise _calibration_error(calibration.name, NO_ROWS, reason, "measure these phases, or leave the file out")


def _covers_phase(row: Measurement, phase: Phase) -> bool:
    """Return whether a row measures the phase. A row without a phase measures every phase that generates tokens."""
    return row.phase == phase or (row.phase is None and phase != "prefill")


def _measured_over_predicted(row: Measurement, case: Case, calibration: Calibration) -> float:
    """Return a row's measured tokens/s over the predicted tokens/s.

    Raises CallError if the measured rate is higher than any kernel allows.
    """
    there = _case_of_row(row, case)
    measured, most = _measured_rate(row, case), MAX_SPEEDUP * overhead_free_rate(there)
    if measured > most:
        said = f"tpot_ms {row.tpot_ms:g}" if row.tpot_ms is not None else f"tokens_per_s_per_gpu {measured:g}"
        reason = f"{said} of {case.phase} is over {MAX_SPEEDUP:g} times as fast as kernels with nothing between them"
        raise _calibration_error(calibration.name, NO_ROWS, reason, "write times in ms, and rates of one GPU")
    return measured / saturated_rate(there)


def _parse_documents(text: str) -> list[Any]:
    """Return the file's JSON documents. The file has a list of them, a single one, or one per line."""
    try:
        found = json.loads(text, object_pairs_hook=reject_repeats)
    except json.JSONDecodeError:
        return [json.loads(line, object_pairs_hook=reject_repeats) for line in text.splitlines() if line.strip()]
    return found if isinstance(found, list) else [found]


def _measurements(documents: Sequence[Any]) -> Iterator[Measurement]:
    for each in documents:
        if not isinstance(each, Mapping):
            raise ValueError(f"{_quote(each)} is no measurement")
        if "mean_tpot_ms" in each:
            yield Measurement(None, _read_sglang_point(each), None, _parse_number(each["mean_tpot_ms"], "mean_tpot_ms"))
        elif "inter_token_latency" in each:
            yield Measurement(None, {}, None, _latency_of_aiperf(each["inter_token_latency"]))
        else:
            yield _parse_own_row(each)


def _read_sglang_point(each: Mapping[str, Any]) -> dict[str, float]:
    """Return {`kv_tokens`: the mean KV length of requests} in a result of SGLang's benchmark.

    The result is empty if the benchmark does not give the requests' lengths. The benchmark's concurrency is not used,
    because it counts the whole service.
    """
    names = ("random_input_len", "random_output_len")
    if any(each.get(name) is None for name in names):
        return {}
    inputs, outputs = (_parse_number(each[name], name) for name in names)
    return {"kv_tokens": inputs + outputs / 2}


def _latency_of_aiperf(metric: Any) -> float:
    found = metric if isinstance(metric, Mapping) else {}
    if found.get("unit", "ms") != "ms":
        raise ValueError(f"inter_token_latency.unit is {_quote(found['unit'])}, and must be ms")
    return _parse_number(found.get("avg"), "inter_token_latency.avg")


def _parse_own_row(row: Mapping[str, Any]) -> Measurement:
    phase = row.get("phase")
    if phase not in PHASES:
        raise ValueError(f"phase is {_quote(phase)}, and must be {', '.join(PHASES)}")
    unknown = row.keys() - POINT_FIELDS - {"phase", "tokens_per_s_per_gpu", "tpot_ms"}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: not known")
    rate, tpot = row.get("tokens_per_s_per_gpu"), row.get("tpot_ms")
    if (rate is None) == (tpot is None) or (tpot is not None and phase == "prefill"):
        raise ValueError("a row has tokens_per_s_per_gpu or, of decode and mixed units, tpot_ms")
    point = {name: _parse_number(row[name], name) for name in POINT_FIELDS & row.keys()}
    return Measurement(
        phase,
        point,
        None if rate is None else _parse_number(rate, "tokens_per_s_per_gpu"),
        None if tpot is None else _parse_number(tpot, "tpot_ms"),
    )


def _parse_number(value: Any, name: str) -> float:
    """Return `value` as a float. Raises ValueError, naming `name`, if it is no number or outside the accepted range."""
    least, most = SHARE if name in ("cache_hit_rate", "acceptance_rate") else MEASURED
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} is {_quote(value)}, and must be a number from {least:g} to {most:g}")
    return float(value)


def _quote(value: Any) -> str:
    """Return a value as JSON, cut at 40 characters."""
    return f"{json.dumps(value):.40}"


def _case_of_row(row: Measurement, case: Case) -> Case:
    """Return `case` at the operating point at which the row was measured."""
    return replace(case, point=replace(case.point, **row.point))


def _measured_rate(row: Measurement, case: Case) -> float:
    """Return the measured tokens/s of one GPU, computed from TPOT if the row gives TPOT."""
    if row.tokens_per_s_per_gpu is not None:
        return row.tokens_per_s_per_gpu
    assert row.tpot_ms is not None
    return _case_of_row(row, case).point.requests / case.unit.attention_tp / (row.tpot_ms / MS_PER_S)


def _mean_error(ratios: Sequence[float], factor: float) -> float:
    return fsum(abs(factor / each - 1) for each in ratios) / len(ratios)


def _calibration_error(path: Path | str, rule: str, reason: str, fix: str) -> CallError:
    return CallError([Finding("--calibration", str(path), rule, reason, fix).at("tidemill plan")])

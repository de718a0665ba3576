"""Fit engines' constants to published rows: `engines.json`, which `python -m tests.docs` writes.

A row with `fits` gives one constant of its engine: the value with which the row is predicted as it was measured. Rows
are taken oldest first, so a later constant knows the earlier ones. If several rows give a constant, it is their mean.
An engine without a constant of its own has that of the first engine that has one, DeepSeek's; a wait for the slowest
rank (`skew_us`) is an engine's own.

Without the rows of one source, `fit` says what was known before that source was published. Predictions of its rows from
there are the `left out` ones of the board.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from statistics import fmean
from typing import Any

from planner.accuracy.predicted import Predicted
from planner.estimate.throughput.engines import read_engine
from planner.estimate.throughput.predict import saturated_rate

KNOWN = json.loads(Path(__file__).with_name("known.json").read_text())  # what no row gives, with sources
BOUNDS = {"between_us": (0.0, 200.0), "beside": (1.0, 2.0), "skew_us": (0.0, 1000.0), "imbalance": (1.0, 4.0)}


def engines_document(rows: Sequence[Predicted]) -> dict[str, Any]:
    """Return the content of `engines.json`, with constants fitted to all `rows`."""
    return {"written_by": "python -m tests.docs", **fit(rows)}


def fit(rows: Sequence[Predicted]) -> dict[str, Any]:
    """Return the engines' constants fitted to `rows`, in the form of `engines.json`."""
    document: dict[str, Any] = deepcopy({key: KNOWN[key] for key in ("defaults", "engines")})
    given: set[str] = set()
    values: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for each in rows:
        constant = each.row.fits
        if constant is None or constant == "utilisation":  # which the spec has
            continue
        found = _fit_factor(each, document) if constant == "factor" else _fit_constant(each, constant, document)
        values[each.engine, constant].append(found)
        value, own = round(fmean(values[each.engine, constant]), 4), document["engines"][each.engine]
        _set_constant(own, constant, each.row.phase, value)
        if constant in document["defaults"] and constant not in given:
            document["defaults"][constant] = value
            given.add(constant)
        on = own.setdefault("measured_on", {}).setdefault(each.row.phase, [])
        if each.gpu not in on:
            on.append(each.gpu)
    return document


def _fit_constant(each: Predicted, constant: str, document: dict[str, Any]) -> float:
    """Return the value of `constant` that makes a row's predicted throughput equal to the measured one.

    Bisection finds the value, because a larger value predicts a lower throughput.
    """
    low, high = BOUNDS[constant]
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _rate_with(each, constant, middle, document) > _measured(each) else (low, middle)
    return round((low + high) / 2, 4)


def _fit_factor(each: Predicted, document: dict[str, Any]) -> float:
    """Return a row's measured throughput over the throughput that is predicted without a factor."""
    return round(_measured(each) / _rate_with(each, "factor", 1.0, document), 4)


def _rate_with(each: Predicted, constant: str, value: float, document: dict[str, Any]) -> float:
    engines = document["engines"]
    tried: dict[str, Any] = dict(engines[each.engine])
    _set_constant(tried, constant, each.row.phase, value)
    engine = read_engine(document | {"engines": engines | {each.engine: tried}}, each.engine)
    return saturated_rate(each.case(engine))


def _set_constant(own: dict[str, Any], constant: str, phase: str, value: float) -> None:
    """Write a constant into `own`, the engine's section of `engines.json`.

    `imbalance` is written for prefill and mixed units, whose routing is equally uneven. In decode, the wait for the
    slowest rank covers uneven routing.
    """
    if constant == "imbalance":
        own[constant] = dict.fromkeys(("prefill", "mixed"), value)
    elif constant == "factor":
        own[constant] = own.get(constant, {}) | {phase: value}
    else:
        own[constant] = value


def _measured(each: Predicted) -> float:
    return each.row.measured["tokens_per_s_per_gpu"]

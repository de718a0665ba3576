"""The loads of experts as running ranks have counted them: `tidemill experts --from URL`, for the next plan.

    http://NODE:9400/metrics    the metrics of one rank; those of all ranks of a unit are added up
    http://PROMETHEUS:9090      a Prometheus, which has scraped them all

A rank counts the rows that each of its slots computed, from its start on. Summed over slots and ranks they are the
loads of logical experts: what `expert_load.file` of a spec and `tidemill experts LOADS` read. SGLang's recorder writes
a file on its server, which both read as it is (`planner/facts/loads.py`). The gateway cannot be asked: it does not know
the ports of its ranks' metrics. A missing expert is noticed; a missing rank with a replica of experts is not, since the
list of ranks is not known.
"""

import json
import queue
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3

from planner.facts.loads import MAX_LOAD
from planner.problems.errors import TidemillError
from planner.problems.finding import Finding
from planner.problems.printable import without_secrets
from stacks.measured.samples import PREFIX, fetch, read_samples

__all__ = ["RecordedError", "RecordedLoads", "read_recorded"]

METRIC = "tidemill_expert_rows_total"
LABELS = ("model_name", "unit", "rank", "moe_layer", "expert")
QUERY = f"sum by ({', '.join(LABELS)}) ({METRIC})"
TIMEOUT_S = 10.0
DEADLINE_S = 30.0  # assumed: for a whole answer; a Prometheus sends the samples below, some 24 MB, in a few seconds
MAX_ANSWER_BYTES = 2**28  # a DeepSeek-V3 on 300 ranks has 160,000 samples, of 150 bytes each

UNUSABLE = (
    urllib3.exceptions.HTTPError,
    *(ArithmeticError, LookupError, OSError, TypeError, ValueError, RecursionError),
)
MAX_LAYERS, MAX_EXPERTS = 2**10, 2**12  # assumed: no rank's answer has more


class RecordedError(TidemillError):
    """The recorded loads cannot be read. `rule` starts with its id."""

    exit_status = 1

    def __init__(self, rule: str, reason: str, fix: str) -> None:
        super().__init__([Finding("", None, rule, reason, fix).at("tidemill experts")])


@dataclass(frozen=True)
class Sample:
    """The number of rows that one rank has computed for one expert."""

    model: str
    rank: tuple[str, str]
    layer: int
    expert: int
    rows: int


@dataclass(frozen=True)
class RecordedLoads:
    """Rows computed by each logical expert, `[num_moe_layers][num_logical_experts]`, and the number of ranks read."""

    loads: tuple[tuple[int, ...], ...]
    num_ranks: int

    @property
    def num_rows(self) -> int:
        """The number of rows of all experts in all layers."""
        return sum(map(sum, self.loads))


def read_recorded(urls: Sequence[str], model: str | None = None) -> RecordedLoads:
    """Return the sum of the loads at all `urls`. If ranks of several models answer, `model` selects one.

    Raises RecordedError if a URL has no loads, or if `model` does not name one of several models.
    """
    samples = [sample for url in urls for sample in _read_samples(url)]
    models = sorted({sample.model for sample in samples})
    if not samples:
        raise RecordedError(
            f"R113 --from must have samples of {METRIC}",
            f"there are none at {', '.join(map(without_secrets, urls))}",
            "give a rank's metrics, on its own port, or a Prometheus that scrapes the ranks",
        )
    if model not in models and (model is not None or len(models) > 1):
        reason = f"ranks of {', '.join(models)} have recorded loads there"
        raise RecordedError("R114 --model must be one of the models", reason, f"for example --model {models[0]}")
    chosen = [sample for sample in samples if model in (None, sample.model)]
    loads = _sum_loads(chosen)
    if max(map(max, loads)) > MAX_LOAD:
        raise _source_error(urls, f"its samples of one expert sum to {max(map(max, loads)):.3g} rows")
    return RecordedLoads(loads, len({sample.rank for sample in chosen}))


def _sum_loads(samples: Sequence[Sample]) -> tuple[tuple[int, ...], ...]:
    rows: Counter[tuple[int, int]] = Counter()
    for sample in samples:
        rows[sample.layer, sample.expert] += sample.rows
    num_layers, num_experts = (max(place) + 1 for place in zip(*rows, strict=True))
    absent = [place for place in product(range(num_layers), range(num_experts)) if place not in rows]
    if absent:
        layer, expert = absent[0]
        others = f", nor of {len(absent) - 1:,} more" if len(absent) > 1 else ""
        reason = f"there are no samples of expert {expert} in MoE layer {layer}{others}"
        raise RecordedError("R115 --from must cover every expert", reason, "give --from URL once for each rank")
    return tuple(tuple(rows[layer, expert] for expert in range(num_experts)) for layer in range(num_layers))


def _read_samples(url: str) -> Iterator[Sample]:
    try:
        is_rank = _url_path(url).endswith("/metrics")
        asked = url if is_rank else f"{url.rstrip('/')}/api/v1/query?{urlencode({'query': QUERY})}"
        answer = _fetch_within_deadline(asked)
        told = _parse_text(answer.decode()) if is_rank else _parse_prometheus(json.loads(answer))
        yield from (_sample(labels, value) for labels, value in told)
    except UNUSABLE as error:
        raise _source_error([url], _explain(error)) from None


def _source_error(urls: Sequence[str], reason: str) -> RecordedError:
    shown = ", ".join(map(without_secrets, urls))
    return RecordedError(
        f"R112 --from ({shown}) must be the metrics of a rank, or a Prometheus",
        reason,
        "for example http://127.0.0.2:9400/metrics, or http://prometheus:9090",
    )


def _url_path(url: str) -> str:
    """Return the path in a URL. Raises ValueError if it is no http or https URL."""
    try:
        parts = urlsplit(url)
    except ValueError:  # which would say all of it
        raise ValueError("it is no address") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("an address begins with http:// or https://")
    return parts.path


def _fetch_within_deadline(url: str) -> bytes:
    """Return the body at `url`. Raises HTTPError or ValueError, also if the body is incomplete after `DEADLINE_S`.

    A thread sends the request: it may wait for a host name, for a handshake, or for one byte after another.
    """
    answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(fetch(url, timeout_s=TIMEOUT_S, max_bytes=MAX_ANSWER_BYTES))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            answers.put(error)

    threading.Thread(target=ask, name="recorded", daemon=True).start()
    try:
        found = answers.get(timeout=DEADLINE_S)
    except queue.Empty:
        raise ValueError(f"its answer is not whole within {DEADLINE_S:g} s") from None
    if isinstance(found, Exception):
        raise found
    return found


def _sample(labels: Mapping[str, str], value: str) -> Sample:
    """Return the sample with these labels and value.

    Raises LookupError, OverflowError, TypeError or ValueError if a rank would not write them so: the JSON of a
    Prometheus server may hold a list as a label, or a number as a value.
    """
    told = [*(labels[label] for label in LABELS), value]
    if not all(isinstance(each, str) for each in told):
        raise ValueError("its labels and values must be text")
    model, unit, rank, layer, expert = told[:-1]
    return Sample(model, (unit, rank), *_check_counts(int(layer), int(expert), float(value)))


def _check_counts(layer: int, expert: int, rows: float) -> tuple[int, int, int]:
    """Return (layer, expert, rows) as integers.

    Raises OverflowError or ValueError if one of them is out of range.
    """
    if not (0 <= layer < MAX_LAYERS and 0 <= expert < MAX_EXPERTS and 0 <= int(rows) <= MAX_LOAD):
        raise ValueError(f"expert {expert} of MoE layer {layer} cannot have {rows:g} rows")
    return layer, expert, int(rows)


def _parse_text(text: str) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the labels and values on a rank's page of metrics."""
    for sample in read_samples(text, METRIC.removeprefix(PREFIX)):
        yield sample.labels, sample.written


def _parse_prometheus(answer: Any) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the samples of a Prometheus' answer to an instant query."""
    for series in answer["data"]["result"]:
        yield series["metric"], series["value"][1]


def _explain(error: Exception) -> str:
    """Return an error's message for users. urllib3's own texts contain object addresses."""
    if isinstance(error, urllib3.exceptions.LocationValueError):
        return "it is no address"
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return "nobody answers there"
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return f"it does not answer within {TIMEOUT_S:g} s"
    return str(error) if type(error) is ValueError else "its answer is neither"

"""Read published measurements: what somebody measured, with the spec of what ran.

A file is one source, such as a blog post. It has rows, and each row is one phase at one operating point:

    source: github.com/OWNER/REPO COMMIT PATH
    published: "2025-05-05"
    spec: ...                          # what the rows of the file share
    rows:
      - name: SGLang, decode EP72
        phase: decode
        spec: ...                      # merged into the file's: together a complete spec
        measured: {tokens_per_s_per_gpu: 2785}
        fits: between_us               # the constant of its engine that this row gives, if it gives one
        first: {tokens_per_s_per_gpu: 2666}   # what was predicted when the row was added

A row has no figure of its own in the code: whatever a source leaves open comes from the spec's defaults.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from planner.estimate.throughput.calibration import MEASURED
from planner.facts.files import read_file
from planner.facts.part import Part
from planner.facts.terms import Phase
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.spec.strategic_merge import JSON_MERGE, merge_patch
from planner.spec.yaml import decode_document

FOLDER = Path(__file__).parent / "published"
MAX_BYTES = 1_000_000
FIX = "see docs/accuracy.md"

Figure = Literal["tokens_per_s_per_gpu", "tpot_ms", "ttft_ms", "weights_gib", "kv_tokens"]
FIGURES: dict[Figure, str] = {
    "tokens_per_s_per_gpu": "tokens/s a GPU",
    "tpot_ms": "TPOT, ms",
    "ttft_ms": "TTFT, ms",
    "weights_gib": "weights of a GPU, GiB",
    "kv_tokens": "KV tokens of a GPU",
}
Figures = dict[Figure, Annotated[float, Field(ge=MEASURED[0], le=MEASURED[1])]]
Constant = Literal["between_us", "beside", "skew_us", "imbalance", "factor", "utilisation"]


class _Row(Part):
    """A row of measurements as a file has it; `PublishedRow` adds the file's source."""

    name: str
    phase: Phase
    engine: str | None = None  # a published system that no spec can name; None: the spec's engine
    spec: dict[str, Any] = Field(default={})
    measured: Figures = Field(min_length=1)
    first: Figures = Field(default={})
    fits: Constant | None = None
    memory_share: float | None = Field(default=None, gt=0, le=1)  # that the engine was told to use, if it was told
    even_routing: bool = False  # whether the benchmark chose experts evenly, whatever the prompts
    remark: str = ""


class _File(Part):
    """A file of rows."""

    source: str
    published: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    spec: dict[str, Any] = Field(default={})
    rows: list[_Row] = Field(min_length=1)


class PublishedRow(_Row):
    """A row with its source and its complete spec."""

    source: str
    published: str


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """Return the rows that come with the planner, oldest source first."""
    rows = (row for path in sorted(FOLDER.glob("*.yaml")) for row in read_rows(path))
    return tuple(sorted(rows, key=lambda row: row.published))


def read_rows(path: Path) -> tuple[PublishedRow, ...]:
    """Return the rows of the file at `path`. Raises CallError or SpecError if the file is unreadable or malformed."""
    try:
        content = read_file(path, MAX_BYTES)
    except OSError as error:
        raise _file_error(
            path, "S914 must be a readable file", error.strerror or str(error), "choose another"
        ) from None
    data = decode_document(content, path).data
    try:
        return tuple(_complete(_File.model_validate(data)))
    except ValidationError as error:
        raise _file_error(path, "S915 must hold measurements, as YAML", _first_mistake(error), FIX) from None


def _complete(file: _File) -> Iterator[PublishedRow]:
    for row in file.rows:
        spec = {"version": 1, "name": "accuracy"} | merge_patch(file.spec, row.spec, JSON_MERGE)
        yield PublishedRow(**(row.model_dump() | {"spec": spec, "source": file.source, "published": file.published}))


def _first_mistake(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"


def _file_error(path: Path, rule: str, reason: str, fix: str) -> CallError:
    return CallError([Finding("rows", str(path), rule, reason, fix).at("tidemill accuracy")])

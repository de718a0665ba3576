"""Read a command's SPEC or PLAN.json argument. The content tells a spec from a plan; the file's name does not matter.

JSON is also YAML, so a spec may be written in it. A plan is a JSON object with keys that only plans have.
"""

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from planner.problems.errors import CallError, SpecError
from planner.problems.finding import Finding
from planner.rules.check import check_document
from planner.spec.overlays import apply_overlay
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec
from planner.spec.yaml import Document, decode_document, read_content

if TYPE_CHECKING:
    from planner.plan.plan import Plan

NO_CONTENTS: Mapping[Path, bytes] = {}
PLAN_ONLY_KEYS = ("assumed", "digest", "document_digest", "expert_maps", "launch_documents")  # `assumed` comes first


def read_input(
    path: Path, overlays: Sequence[Path] = (), contents: Mapping[Path, bytes] = NO_CONTENTS
) -> "ResolvedSpec | Plan":
    """Return the spec or plan in the file at `path`, or the plan of a rendered folder. The file is read only once.

    `overlays` apply to a spec; if the file is a plan, the caller refuses them. `contents` has the bytes at paths that
    are not files but were given as text. Raises SpecError or CallError if `path` has neither spec nor plan.
    """
    if path in contents or not path.is_dir():
        content = _content(path, contents)
        if not is_plan(content):
            return check_document(_read_documents(content, path, overlays, contents))
    from planner.plan.load import load_plan, read_plan  # imported late, because specs don't need it

    return read_plan(path) if path.is_dir() else load_plan(content, path)


def read_spec(path: Path, overlays: Sequence[Path] = ()) -> ResolvedSpec:
    """Return the spec at `path` with its `overlays` applied. Raises CallError for a plan.

    Checked as a spec, a plan would fail at every key, so it is refused as a whole.
    """
    found = read_input(path, overlays)
    if isinstance(found, ResolvedSpec):
        return found
    raise _no_spec(path)


def named_files(*given: tuple[Path, "ResolvedSpec | Plan"]) -> list[Path]:
    """Return the files that specs and plans name, each given with the path from which it was read.

    Each file may be beside any of them: a change reads the former plan's loads from beside the new spec. A plan that
    was sealed again may lack an input that its spec names.
    """
    names = set[str]()
    for _, each in given:
        names |= {*each.inputs, *file_names(each.written if isinstance(each, ResolvedSpec) else each.spec)}
    return [path.parent / name for path, _ in given for name in sorted(names)]


def file_names(spec: Spec) -> list[str]:
    """Return the names of files in a spec, as it writes them."""
    config = None if isinstance(spec.model, str) else spec.model.config
    trace = spec.traffic and spec.traffic.trace
    return [name for name in (config, spec.expert_load.file, trace) if name]


def refuse_option(option: str, value: Path, path: Path) -> CallError:
    """Return the error for `option`, which needs a spec, when the file at `path` is a plan."""
    rule, reason = "S911 needs a spec, not a plan", f"{path} is a finished plan and is not planned again"
    return CallError([Finding(option, str(value), rule, reason, "leave it out, or give the spec").at("tidemill")])


def _read_documents(content: bytes, path: Path, overlays: Sequence[Path], contents: Mapping[Path, bytes]) -> Document:
    """Return the spec in `content` with its `overlays` applied. Raises SpecError with the mistakes of all files."""
    documents, wrong = list[Document](), list[Finding]()
    for each in (path, *overlays):
        try:
            documents.append(decode_document(content if each is path else _read_overlay(each, contents), each))
        except SpecError as error:
            wrong += error.findings
    if wrong:
        raise SpecError(wrong)
    return reduce(apply_overlay, documents)


def _read_overlay(path: Path, contents: Mapping[Path, bytes]) -> bytes:
    content = _content(path, contents)
    if is_plan(content):
        raise _no_spec(path)
    return content


def _content(path: Path, contents: Mapping[Path, bytes]) -> bytes:
    return contents[path] if path in contents else read_content(path)


def _no_spec(path: Path) -> CallError:
    rule, fix = "S912 must be a spec", "give the spec, or use the plan with render, up or status"
    return CallError([Finding("", None, rule, "it is a finished plan and is not planned again", fix).at(str(path))])


def is_plan(content: bytes) -> bool:
    """Return whether `content` is a JSON object with a key that only plans have, even if damaged."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return content.lstrip().startswith(b"{") and any(f'"{key}":'.encode() in content for key in PLAN_ONLY_KEYS)
    return isinstance(data, dict) and not data.keys().isdisjoint(PLAN_ONLY_KEYS)

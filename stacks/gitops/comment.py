"""Read the report of a check that untrusted code ran, and write it as the comment of a pull request.

On GitHub the check of a fork's pull request may run nothing with write rights, so another workflow posts its report.
That report is whatever the fork's code wrote. It is read as hostile: bounded, strict JSON of exactly our keys, and
shown as text. What it says may still be a lie, as whatever a pull request says of itself.
"""

import re
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict

from planner.diff.change import Tool
from planner.diff.markdown import escaped
from planner.facts.strict_json import NotStrict, parse_json
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.rules.forms import DNS_1035, MAX_DNS_LABEL
from stacks.gitops.report import Report, report_markdown

__all__ = ["MAX_BYTES", "MAX_COMMENT", "comment_on"]

ENVIRONMENT = re.compile(r"[a-z0-9-]*")
MAX_BYTES = 1_000_000  # assumed: twenty times the report of the published system's plan
MAX_COMMENT = 65_535  # GitHub's limit (runatlantis/atlantis, pull request 278); GitLab takes more
MAX_NUMBER = 10**18  # assumed: nothing that a plan counts comes near
MAX_TEXT = 10_000  # characters; a finding has four parts of at most 2,000
MAX_MISTAKES = 20  # the most mistakes to show


class _Mistake(BaseModel):
    """One entry of a report's `errors`: the keys that the comment shows."""

    model_config = ConfigDict(strict=True, extra="ignore")

    file: str
    line: int
    column: int
    rule: str
    message: str


class _Mistakes(BaseModel):
    """The JSON that `check` prints if the spec or the call is wrong."""

    model_config = ConfigDict(strict=True, extra="ignore")

    errors: list[_Mistake]


def comment_on(path: Path, environment: str = "") -> str:
    """Return the text of a comment that shows the report in the file at `path`.

    It begins with a mark by which a later run finds the comment. Raises CallError if the file is no report, if
    `environment` is no valid name, or if the comment would be too long.
    """
    if not ENVIRONMENT.fullmatch(environment):
        raise _refused(path, "--environment has no such name")
    content = _read(path)
    try:
        document = parse_json(content)
    except NotStrict as error:
        raise _refused(path, str(error)) from None
    if not isinstance(document, dict) or not _is_bounded(document):
        raise _refused(path, "it is no object, or has a number or text that no report has")
    try:
        body = _mistakes_text(_Mistakes.model_validate_json(content)) if "errors" in document else _report_text(content)
    except ValueError:  # pydantic's ValidationError included
        raise _refused(path, "its keys or values are not those of a report") from None
    mark, heading = (f"{environment} ", f"**{environment}**\n\n") if environment else ("", "")
    comment = f"<!-- tidemill {mark}-->\n{heading}{body}"
    if len(comment) > MAX_COMMENT:
        raise _refused(path, f"its comment would have over {MAX_COMMENT:,} characters")
    return comment


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from None
    if len(content) > MAX_BYTES:
        raise _refused(path, f"it has over {MAX_BYTES:,} bytes")
    return content


def _is_bounded(value: Any) -> bool:
    """Return whether all keys, strings and numbers in a JSON value are small enough for a comment."""
    if isinstance(value, dict):
        return all(len(key) <= MAX_TEXT and _is_bounded(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(_is_bounded, value))
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    return value is None or abs(value) <= MAX_NUMBER


def _report_text(content: bytes) -> str:
    """Return the report in `content` as markdown. Raises ValueError if it is no report."""
    report = Report.model_validate_json(content)
    names = [report.name]
    if report.diff is not None:
        names += [report.diff.name, *(each.name for each in report.diff.units)]
        if report.diff.ways.keys() != set(get_args(Tool)):
            raise ValueError("a change is applied in these ways, and no other")
    if not all(len(each) <= MAX_DNS_LABEL and DNS_1035.fullmatch(each) for each in names):
        raise ValueError("no plan and no unit has such a name")
    return report_markdown(report)


def _mistakes_text(found: _Mistakes) -> str:
    """Return lines that say that the spec is refused, the first `MAX_MISTAKES` mistakes, and how many follow."""
    lines = ["- refused: there is no plan to compare"]
    for each in found.errors[:MAX_MISTAKES]:
        place = f"{each.file}:{each.line}:{each.column}" if each.line else each.file
        rule, _, _ = each.rule.partition(" ")
        lines.append(f"- {escaped(f'{place}: {each.message} [{rule}]')}")
    if len(found.errors) > MAX_MISTAKES:
        lines.append(f"- and {len(found.errors) - MAX_MISTAKES:,} more")
    return "".join(f"{line}\n" for line in lines)


def _refused(path: Path, reason: str) -> CallError:
    rule = "R605 must be the report of a check"
    fix = "write one with tidemill gitops check --format json"
    return CallError([Finding("", None, rule, reason, fix).at(str(path))])

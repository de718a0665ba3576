"""The report of a check, as a document for programs, text for a terminal and markdown for a comment.

Names, paths and messages come from a spec that anybody may have written: text is printable, and markdown shows what
stands there and notifies nobody. None of it begins a line, where forges and bots read commands such as `/approve`.
"""

from collections.abc import Sequence

from planner.diff.change import Change
from planner.diff.markdown import diff_markdown, escaped
from planner.diff.text import diff_text
from planner.facts.part import Digest, Maybe, Part
from planner.problems.printable import printable, without_passwords
from stacks.gitops.gate import Objection

__all__ = ["Report", "report_markdown", "report_text"]


class Report(Part):
    """The findings of a check. `diff` is None if nothing runs yet."""

    name: str
    plan_digest: Digest
    conditions: tuple[str, ...]  # the conditions that were judged
    objections: tuple[Objection, ...]  # the conditions that hold, so that the change is refused
    stale: tuple[str, ...]  # files of the folder that rendering would change
    foreign: tuple[str, ...]  # files that make a tool apply something else than the folder
    diff: Maybe[Change] = None


def report_text(report: Report) -> str:
    """Return the report as text: the change, then the decision. It ends with a line end."""
    change = f"{_first(report)}\n" if report.diff is None else diff_text(report.diff)
    return f"{change}\n" + "".join(f"{printable(without_passwords(line))}\n" for line in _decision(report))


def report_markdown(report: Report) -> str:
    """Return the report as markdown: the decision, then the change. It ends with a line end."""
    change = f"{escaped(_first(report))}\n" if report.diff is None else diff_markdown(report.diff)
    return "".join(f"- {escaped(line)}\n" for line in _decision(report)) + f"\n{change}"


def _first(report: Report) -> str:
    return f"nothing runs from this folder yet, and plan {report.plan_digest[:19]} of {report.name} is its first"


def _decision(report: Report) -> Sequence[str]:
    """Return a line for each objection; without objections, a line with the conditions that passed."""
    if report.objections:
        return [f"refused by {each.condition}: {each.reason}" for each in report.objections]
    if report.conditions:
        return [f"passed: {', '.join(report.conditions)}"]
    return ["no condition was given (--fail-on)"]

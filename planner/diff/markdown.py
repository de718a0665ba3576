"""Write a change as markdown, for the comment of a pull request: a table of what everybody asks, details folded.

Names, images and messages come from a spec that anybody may have written. So whatever markdown or HTML would read in
them is written as an entity, and a mention or a reference to an issue is broken up. GitHub and GitLab show what stands
in the spec, and nobody is notified. A dollar sign would begin a formula on GitHub.
"""

import re

from planner.diff.change import Change
from planner.diff.told import Topic, headline, topics
from planner.problems.printable import printable, without_passwords

__all__ = ["diff_markdown", "escaped"]

READ_BY_MARKDOWN = re.compile(r"[&<>\\`*_\[\]|~$]")
READ_BY_FORGES = re.compile("([@#!])")  # people, issues, merge requests
BREAK = "<!-- -->"  # between the sign and the name: text on both sides is shown as if nothing were there


def diff_markdown(change: Change) -> str:
    """Return the change's markdown, which ends with a line end."""
    told = topics(change)
    lines = [f"| **{change.verdict}** | {escaped(headline(change))} |", "|:--|:--|"]
    lines += [f"| {each.name} | {_joined(each)} |" for each in told if not each.is_detail]
    if details := [each for each in told if each.is_detail]:
        lines += ["", f"<details><summary>{', '.join(each.name for each in details)}</summary>", ""]
        lines += [*(f"- **{each.name}**: {_joined(each)}" for each in details), "", "</details>"]
    return "".join(f"{line}\n" for line in lines)


def _joined(topic: Topic) -> str:
    return "<br>".join(map(escaped, topic.lines))


def escaped(text: str) -> str:
    """Return text that is shown as it is."""
    shown = printable(without_passwords(text))
    entities = READ_BY_MARKDOWN.sub(lambda sign: f"&#{ord(sign[0])};", shown)
    return READ_BY_FORGES.sub(rf"\1{BREAK}", entities).replace("&#<!-- -->", "&#")

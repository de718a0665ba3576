"""Write a change as markdown, for the comment of a pull request: a table of what everybody asks, details folded.

Names, images and messages come from a spec that anybody may have written. So whatever markdown or HTML would read in
them is written as an entity, and a mention, a reference or an address is broken up. GitHub and GitLab show what stands
in the spec, link nothing and notify nobody. A dollar sign would begin a formula on GitHub. What would make the comment
longer than a forge takes is left out.
"""

import re
from itertools import accumulate

from planner.diff.change import Change
from planner.diff.wording import Topic, headline, topics
from planner.problems.printable import printable, without_passwords

__all__ = ["diff_markdown", "escaped"]

READ_BY_MARKDOWN = re.compile(r"[&<>\\`*_\[\]|~$]")
# People, issues, merge requests, milestones; GitHub's GH-1, and addresses.
READ_BY_FORGES = re.compile(r"([@#!]|%(?=[\w\"])|\bGH-(?=\d)|:(?=//)|www(?=\.))", re.IGNORECASE)
LINE_END = "<br>"
BREAK = "<!-- -->"  # between the sign and the name: text on both sides is shown as if nothing were there
MAX_TOPIC = 3000  # characters; GitHub takes 65,536 in a comment, and there are at most 17 topics
CUT = "... (--format json has what is cut)"


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
    """Return the lines that there is room for: of short ones many, and none of a single one that is too long."""
    lines = list(map(escaped, topic.lines))
    ends = accumulate(len(line) + len(LINE_END) for line in lines)
    shown = [line for line, end in zip(lines, ends, strict=True) if end <= MAX_TOPIC]
    return LINE_END.join(shown if len(shown) == len(lines) else [*shown, CUT])


def escaped(text: str) -> str:
    """Return text that is shown as it is."""
    shown = printable(without_passwords(text))
    entities = READ_BY_MARKDOWN.sub(lambda sign: f"&#{ord(sign[0])};", shown)
    return READ_BY_FORGES.sub(rf"\1{BREAK}", entities).replace("&#<!-- -->", "&#")

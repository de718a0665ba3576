"""Write a change as markdown for a pull request's comment: a table of the main facts, with details folded.

Names, images and messages come from a spec that anybody may have written. So markdown and HTML syntax in them becomes
entities, and mentions, references and addresses are broken up. GitHub and GitLab then show the spec's text, link
nothing and notify nobody. A dollar sign would begin a formula on GitHub. Text beyond a forge's limit for comments is
cut.
"""

import re
from itertools import accumulate

from planner.diff.change import Change
from planner.diff.wording import Topic, headline, topics
from planner.problems.printable import printable, without_passwords

MARKDOWN_SYNTAX = re.compile(r"[&<>\\`*_\[\]|~$]")
# What forges turn into links: people, issues, merge requests, milestones, GitHub's GH-1, and addresses.
FORGE_REFERENCES = re.compile(r"([@#!]|%(?=[\w\"])|\bGH-(?=\d)|:(?=//)|www(?=\.))", re.IGNORECASE)
LINE_END = "<br>"
BREAK = "<!-- -->"  # invisible; separates a sign from the name behind it, so that forges link nothing
MAX_TOPIC = 3000  # characters; GitHub takes 65,536 in a comment, and there are at most 17 topics
CUT = "... (--format json has what is cut)"


def diff_markdown(change: Change) -> str:
    """Return the change as markdown, ending with a newline."""
    told = topics(change)
    lines = [f"| **{change.verdict}** | {escaped(headline(change))} |", "|:--|:--|"]
    lines += [f"| {each.name} | {_join_lines(each)} |" for each in told if not each.is_detail]
    if details := [each for each in told if each.is_detail]:
        lines += ["", f"<details><summary>{', '.join(each.name for each in details)}</summary>", ""]
        lines += [*(f"- **{each.name}**: {_join_lines(each)}" for each in details), "", "</details>"]
    return "".join(f"{line}\n" for line in lines)


def _join_lines(topic: Topic) -> str:
    """Return as many of the topic's lines as fit into MAX_TOPIC characters, with a note if some are cut."""
    lines = list(map(escaped, topic.lines))
    ends = accumulate(len(line) + len(LINE_END) for line in lines)
    shown = [line for line, end in zip(lines, ends, strict=True) if end <= MAX_TOPIC]
    return LINE_END.join(shown if len(shown) == len(lines) else [*shown, CUT])


def escaped(text: str) -> str:
    """Escape a text so that markdown shows it as it is."""
    shown = printable(without_passwords(text))
    entities = MARKDOWN_SYNTAX.sub(lambda sign: f"&#{ord(sign[0])};", shown)
    return FORGE_REFERENCES.sub(rf"\1{BREAK}", entities).replace("&#<!-- -->", "&#")

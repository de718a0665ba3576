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

SYNTAX = r"[&<>\\`*_\[\]|~$]"
# What forges link, even behind an entity: people, issues, merge requests, GitHub's GH-1, Jira's keys, addresses, and
# GitLab's milestones, labels, snippets, epics, alerts, iterations and `[vulnerability:1]`, and commits, which have
# seven hex digits or more. GitLab colours {+ and {-.
REFERENCES = (
    r"[@#!]|[%~$&^*](?=[\w\"])|\[(?=\w+:)|(?i:\bgh-)(?=\d)|\b[A-Z][A-Z\d]+-(?=\d)|:(?=//)|(?i:www)(?=\.)|\{(?=[+-])"
    r"|[\da-fA-F]{6}(?=[\da-fA-F])"
)
SPECIAL = re.compile(f"(?P<reference>{REFERENCES})|{SYNTAX}")
AS_BEFORE = "as before: "  # how `wording.py` begins a line of figures that are the same
LINE_END = "<br>"
BREAK = "<!-- -->"  # invisible; separates a sign from the name behind it, so that forges link nothing
MAX_TOPIC = 2500  # characters; GitHub takes 65,536 in a comment, and there are at most 24 topics
CUT = "... (--format json has what is cut)"


def diff_markdown(change: Change) -> str:
    """Return the change as markdown, ending with a newline. Topics that say nothing new are folded with the details."""
    told = topics(change)
    details = [each for each in told if each.is_detail or all(line.startswith(AS_BEFORE) for line in each.lines)]
    lines = [f"| **{change.verdict}** | {_show(headline(change))} |", "|:--|:--|"]
    lines += [f"| {each.name} | {_join_lines(each)} |" for each in told if each not in details]
    if details:
        lines += ["", f"<details><summary>{', '.join(each.name for each in details)}</summary>", ""]
        lines += [*(f"- **{each.name}**: {_join_lines(each)}" for each in details), "", "</details>"]
    return "".join(f"{line}\n" for line in lines)


def _join_lines(topic: Topic) -> str:
    """Return as many of the topic's lines as fit into MAX_TOPIC characters, with a note if some are cut."""
    lines = list(map(_show, topic.lines))
    ends = accumulate(len(line) + len(LINE_END) for line in lines)
    shown = [line for line, end in zip(lines, ends, strict=True) if end <= MAX_TOPIC]
    return LINE_END.join(shown if len(shown) == len(lines) else [*shown, CUT])


def _show(line: str) -> str:
    """Escape a line, and replace `->` by an arrow, because browsers break `->` in two at the end of a line."""
    return escaped(line.replace(" -> ", " \N{RIGHTWARDS ARROW} "))


def escaped(text: str) -> str:
    """Escape a text so that markdown shows it as it is. It must not begin a line, where bots read commands."""
    return SPECIAL.sub(_escape, printable(without_passwords(text)))


def _escape(found: re.Match[str]) -> str:
    sign = found[0]
    shown = f"&#{ord(sign)};" if re.fullmatch(SYNTAX, sign) else sign
    return f"{shown}{BREAK}" if found["reference"] else shown

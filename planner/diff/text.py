"""Write a change as text for a terminal of 80 columns. It always fits one screen."""

import textwrap
from collections.abc import Sequence

from planner.diff.change import Change
from planner.diff.wording import Topic, headline, topics
from planner.problems.printable import printable, without_passwords
from planner.report.columns import WIDTH

MAX_LINES = 60
INDENT = 12
CUT = "  ...         --format json has what is cut"


def diff_text(change: Change) -> str:
    """Return the change as text, ending with a newline. If it is too long for a screen, the longest topics are cut."""
    told = [(topic.most, _lines(topic)) for topic in topics(change) if topic.most]
    room = MAX_LINES - len((headline(change), "", CUT))
    cuts = (_cut(told, cap) for cap in range(room, 0, -1))
    shown = next(lines for lines in cuts if len(lines) <= room)
    is_cut = len(shown) < sum(len(lines) for _, lines in told)
    lines = [headline(change), "", *shown, *([CUT] if is_cut else [])]
    return "".join(f"{printable(without_passwords(line))}\n" for line in lines)


def _cut(topics: Sequence[tuple[int, list[str]]], cap: int) -> list[str]:
    """Return the lines of all topics, at most `cap` of each. `topics` has (own limit, lines) of each."""
    found: list[str] = []
    for most, lines in topics:
        room = min(most, cap)
        found += lines if len(lines) <= room else [*lines[: room - 1], f"{' ' * INDENT}..."]
    return found


def _lines(topic: Topic) -> list[str]:
    """Return a topic's lines, wrapped at the terminal's width. The first line begins with the topic's name."""
    found: list[str] = []
    for line in topic.lines:
        name = topic.name if not found else ""
        found += textwrap.wrap(
            f"  {name:{INDENT - 2}}{line}",
            WIDTH,
            subsequent_indent=" " * INDENT,
            break_on_hyphens=False,
            drop_whitespace=True,
        )
    return found

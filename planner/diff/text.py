"""Write a change as text for a terminal of 80 columns. It always fits one screen."""

import textwrap

from planner.diff.change import Change
from planner.diff.wording import Topic, headline, topics
from planner.problems.printable import printable, without_passwords
from planner.report.columns import WIDTH

__all__ = ["MAX_LINES", "diff_text"]

MAX_LINES = 60
INDENT = 12
CUT = "  ...         --format json has what is cut"


def diff_text(change: Change) -> str:
    """Return the change as text, ending with a newline."""
    lines, is_cut = [headline(change), ""], False
    for topic in topics(change):
        own = _lines(topic)
        is_cut |= len(own) > topic.most
        lines += own if len(own) <= topic.most else [*own[: topic.most - 1], f"{' ' * INDENT}..."]
    shown = [*lines, *([CUT] if is_cut else [])]
    assert len(shown) <= MAX_LINES
    return "".join(f"{printable(without_passwords(line))}\n" for line in shown)


def _lines(topic: Topic) -> list[str]:
    """Return a topic's lines, wrapped, after its name."""
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

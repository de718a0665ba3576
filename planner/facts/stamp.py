"""The first line of each file that `render` writes. It marks the file as ours, and may have a digest of the rest.

Only files that one change at a time touches have a digest: the line would conflict wherever two branches change the
file. Those are a unit's nodes and a phase's map.
"""

import re

from planner.facts.digest import digest_of_text

__all__ = ["MARK", "is_stamped", "stamped", "unstamped"]

MARK = "# Written by tidemill render"
ENDS = ". Change the spec instead.\n"
STAMP = re.compile(rf"{MARK}(?: \((?P<digest>sha256:[0-9a-f]{{64}})\))?[^\n]*\n(?P<body>.*)", re.S)


def stamped(body: str, *, with_digest: bool = False) -> str:
    """Return `body` below its stamp."""
    return f"{MARK}{f' ({digest_of_text(body)})' if with_digest else ''}{ENDS}{body}"


def is_stamped(text: str) -> bool:
    """Return whether `render` wrote the file."""
    return text.startswith(MARK)


def unstamped(text: str) -> tuple[str, str | None]:
    """Return what is below the stamp, and the digest in it; all of a text that has no stamp."""
    found = STAMP.fullmatch(text)
    return (found["body"], found["digest"]) if found else (text, None)

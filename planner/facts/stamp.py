"""The stamp: the first line of each file that `render` writes. It marks the file as ours, and may hold a digest.

The digest is of the rest of the file. If two branches change a file, their digests conflict on merging. So only files
that should not be merged have one: a unit's nodes and a phase's map.
"""

import re

from planner.facts.digest import digest_of_text

MARK = "# Written by tidemill render"
ENDS = ". Change the spec instead.\n"
STAMP = re.compile(rf"{MARK}(?: \((?P<digest>sha256:[0-9a-f]{{64}})\))?[^\n]*\n(?P<body>.*)", re.S)


def add_stamp(body: str, *, with_digest: bool = False) -> str:
    """Return a file's text: the stamp, with a digest if asked for, and `body` below it."""
    return f"{MARK}{f' ({digest_of_text(body)})' if with_digest else ''}{ENDS}{body}"


def is_stamped(text: str) -> bool:
    """Return whether a file with this text begins with the stamp, so that `render` wrote it."""
    return text.startswith(MARK)


def split_stamp(text: str) -> tuple[str, str | None]:
    """Return (text below the stamp, the stamp's digest or None). Without a stamp, return (the whole text, None)."""
    found = STAMP.fullmatch(text)
    return (found["body"], found["digest"]) if found else (text, None)

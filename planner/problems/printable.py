"""Text of files and pods, fit for a terminal: what would move the cursor or hide words is written out.

And addresses, fit for a log: without what nobody else is to read.
"""

import re

__all__ = ["printable", "without_secrets"]


def printable(text: str) -> str:
    r"""Return `text` with every character escaped that nobody sees, line ends included: ESC becomes `\x1b`."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def without_secrets(url: str) -> str:
    """Return an address without its user, password, query and fragment, also one that is malformed.

    An @ after the first ? or # may end a malformed password or belong to the query: such an address is not shown.
    """
    scheme = next((each for each in ("https://", "http://") if url.startswith(each)), "")
    shown, *rest = re.split("[?#]", url.removeprefix(scheme), maxsplit=1)
    return scheme + ("..." if any("@" in each for each in rest) else shown.rpartition("@")[2])

"""Text of files and pods, fit for a terminal: what would move the cursor or hide words is written out."""

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""Return `text` with every character escaped that nobody sees, line ends included: ESC becomes `\x1b`."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)

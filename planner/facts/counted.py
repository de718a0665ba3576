"""Numbers of things, as people say them: 1 node, 2 nodes, 1,200 nodes."""

__all__ = ["counted"]


def counted(number: int, thing: str) -> str:
    """Return the number and what it counts, whose name takes an s except for one."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"

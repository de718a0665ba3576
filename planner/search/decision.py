"""A value that stands in the plan and not in the spec."""

from dataclasses import dataclass
from typing import Any

__all__ = ["DEFAULT", "Decision"]

DEFAULT = "default"


@dataclass(frozen=True)
class Decision:
    """A value that the spec does not say, and why it is this one."""

    path: str
    value: Any
    why: str

"""What a rule between fields is: a check, and the paths of the values that it is asked with; and the usual fix."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Broken", "Rule", "declare_in", "nearest"]


@dataclass(frozen=True)
class Broken:
    """A rule's verdict; who asked knows the path and the value."""

    rule: str
    reason: str
    fix: str
    path: str | None = None  # where it is not the first argument's, and then the value there
    value: Any = None


@dataclass(frozen=True)
class Rule:
    """A check and the paths of its arguments."""

    check: Callable[..., Broken | None]
    reads: tuple[str, ...]


Check = Callable[..., Broken | None]


def declare_in(rules: list[Rule]) -> Callable[..., Callable[[Check], Check]]:
    """A decorator that takes paths and adds what it decorates to `rules`."""

    def reads(*paths: str) -> Callable[[Check], Check]:
        def declare(check: Check) -> Check:
            rules.append(Rule(check, paths))
            return check

        return declare

    return reads


def nearest(value: int, allowed: list[int]) -> str:
    """The allowed numbers on both sides of `value`: `nearest: 96 or 144`."""
    below = [str(number) for number in allowed if number < value][-1:]
    above = [str(number) for number in allowed if number > value][:1]
    return f"nearest: {' or '.join(below + above)}"

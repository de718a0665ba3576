"""What a rule between fields is: a check, and the paths of the values that it is asked with.

A list comes with all its items, in their places: of one with a mistake there is what is right, as a `Partial`.
A path with a question mark is of a value that the check can do without: it is asked with None where that is wrong or
not there, and finds less good a fix.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from planner.problems.fix import Fix, removal

__all__ = ["Broken", "Partial", "Rule", "Verdict", "declare_at", "declare_in", "without_effect"]


class Partial(dict[str, Any]):
    """An item of a list without what is wrong in it. A key that it lacks may be there: no rule may say it is not."""


@dataclass(frozen=True)
class Broken:
    """A rule's verdict; who asked knows the path and the value."""

    rule: str
    reason: str
    fix: Fix | str
    path: str | None = None  # where it is not the first argument's, and then the value there
    value: Any = None


Verdict = Broken | Iterable[Broken] | None  # of one value, or of each item of a list
Check = Callable[..., Verdict]


@dataclass(frozen=True)
class Rule:
    """A check and the paths of its arguments."""

    check: Check
    reads: tuple[str, ...]

    def verdicts(self, reads: tuple[str, ...], values: Mapping[str, Any]) -> tuple[Broken, ...]:
        """What is broken among `values`; nothing where one that the check needs is missing."""
        if any(path not in values and not path.endswith("?") for path in reads):
            return ()
        found = self.check(*(values.get(path.removesuffix("?")) for path in reads))
        return (found,) if isinstance(found, Broken) else tuple(found or ())


def without_effect(where: str, reason: str, path: str, value: Any = None, fix: Fix | str | None = None) -> Broken:
    """Return the verdict that nothing reads what stands at `path`: the same of all fields, and always removable."""
    return Broken(f"S560 has no effect {where}", reason, fix or removal(path, words="remove it"), path, value)


def declare_in(rules: list[Rule]) -> Callable[..., Callable[[Check], Check]]:
    """A decorator that takes paths and adds what it decorates to `rules`."""

    def reads(*paths: str) -> Callable[[Check], Check]:
        def declare(check: Check) -> Check:
            rules.append(Rule(check, paths))
            return check

        return declare

    return reads


def declare_at(rules: list[Rule], *places: str) -> Callable[[Check], Check]:
    """A decorator for a check of what may stand at each of `places`; it is asked with the place and the value."""

    def declare(check: Check) -> Check:
        rules.extend(Rule(partial(check, place), (place,)) for place in places)
        return check

    return declare

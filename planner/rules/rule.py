"""What a rule is: a function that asks a candidate for values and yields what it finds wrong, and the level it needs.

    fields       each value is right by itself
    resolved     what names stand for is known
    laid out     layouts and memory are known, and not yet where units go
    placed       it is known where units go
    mapped       expert maps are known
    rendered     what the spec's engine cannot run: the spec plans all the same
    started      what pods would do, where the engine can run the spec
    predicted    speed is known

Until all fields are right a rule asks a `Written`, and after that a `Candidate`.
A question about a value that is wrong or not there raises `Unknown`. It silences that rule alone, so a mistake is told
once and hides no other one. A rule repairs nothing: its fix is words, and changes that somebody else tries.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from planner.layout.memory import MemoryPlan
from planner.problems.finding import Finding, Unknown
from planner.problems.fix import Change, Fix, removal
from planner.spec.resolved import ResolvedSpec

__all__ = ["Candidate", "Level", "Rule", "is_within", "without_effect"]

Level = Literal["fields", "resolved", "laid out", "placed", "mapped", "rendered", "started", "predicted"]
LEVELS: Sequence[Level] = get_args(Level)


class Candidate(Protocol):
    """A spec without mistakes, as far as rules ask what follows from it."""

    @property
    def resolved(self) -> ResolvedSpec:
        """The spec, with what its files and names stand for."""

    @property
    def memory(self) -> Sequence[MemoryPlan]:
        """A GPU of each phase; none where ranks share the host's."""

    def having(self, change: Change) -> "Candidate":
        """The candidate whose user had also written `change`; its spec is Unknown where that is wrong."""


@dataclass(frozen=True)
class Rule:
    """A check, the ids of what it may find, and how far a spec must be thought through for it.

    Where it is about several phases or paths, it is asked once for each. `*` in a path is each item of a list.
    """

    ids: str  # with spaces between them
    level: Level
    check: Callable[..., Iterable[Finding]]
    each_of: Sequence[str] = ()

    def findings(self, candidate: Any) -> Iterator[Finding]:
        """Yield what is wrong with `candidate`, as far as the rule knows what it asks for."""
        for place in self._places(candidate):
            try:
                for found in self.check(candidate, *place):
                    assert found.id in self.ids.split(), f"{self.ids} finds {found.id}"
                    yield found
            except Unknown:
                continue

    def _places(self, candidate: Any) -> Iterable[tuple[str, ...]]:
        if not self.each_of:
            return [()]
        return [(path,) for each in self.each_of for path in (candidate.matching(each) if "*" in each else [each])]


def is_within(level: Level, most: Level) -> bool:
    """Return whether a candidate that may be thought through to `most` is thought through to `level`."""
    return LEVELS.index(level) <= LEVELS.index(most)


def without_effect(where: str, reason: str, path: str, value: Any = None, fix: Fix | str | None = None) -> Finding:
    """Return the finding that nothing reads what stands at `path`.

    Who writes a field wants something of it. Where nothing reads it, the plan is another than the one that was meant.
    So it is an error, the same one for all fields, and can always be removed.
    """
    return Finding(path, value, f"S560 has no effect {where}", reason, fix or removal(path, words="remove it"))

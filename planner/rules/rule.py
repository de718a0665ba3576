"""A rule: a function that reads values from a candidate and yields findings, with the level that it needs.

    fields       each value is right by itself
    resolved     files and catalog entries are read
    laid out     layouts and memory are known; placement is not
    placed       placement is known
    mapped       expert maps are known
    rendered     limits of the spec's engine, beyond which a spec can still be planned
    started      behaviour of pods, if the engine can run the spec
    predicted    speed is known

A rule reads `ValidValues` until all fields are right, and a `Candidate` after that. Reading a wrong or missing value
raises `Unknown`, which silences only that rule: each mistake is reported once and hides no other. A rule repairs
nothing: its fix has words, and changes that `check.py` or `repair.py` tries.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from pydantic import BaseModel

from planner.facts.terms import Phase
from planner.problems.finding import Finding, Unknown
from planner.problems.fix import Change, Fix, removal
from planner.spec.resolved import ResolvedSpec

if TYPE_CHECKING:
    from planner.cost.demand import PhaseLoad
    from planner.estimate.coverage import FailureDomains
    from planner.estimate.performance import PhaseOutlook
    from planner.estimate.throughput.predict import Prediction
    from planner.expert_map import Domains, ExpertMap
    from planner.layout.layout import PhaseLayout
    from planner.layout.memory import MemoryPlan
    from planner.schedule.starts import StartTimes

Level = Literal["fields", "resolved", "laid out", "placed", "mapped", "rendered", "started", "predicted"]
LEVELS: Sequence[Level] = get_args(Level)


class Candidate(Protocol):
    """A spec without mistakes, with the results that rules read. Results beyond a candidate's level raise Unknown."""

    @property
    def resolved(self) -> ResolvedSpec:
        """The spec with file and catalog references resolved."""

    @property
    def layouts(self) -> "Sequence[PhaseLayout]":
        """The layout of each phase: EP size, slots and nodes of its units."""

    @property
    def memory(self) -> "Sequence[MemoryPlan]":
        """The memory of one GPU of each phase; empty if ranks share the host's memory."""

    @property
    def start_times(self) -> "StartTimes":
        """How long units take to start; None if unknown."""

    @property
    def places(self) -> "Mapping[Phase, FailureDomains]":
        """The failure domains of the ranks, once units are placed."""

    @property
    def maps(self) -> "Mapping[Phase, ExpertMap]":
        """The expert map of each phase."""

    def mean_balance(self, layout: "PhaseLayout", slots_per_gpu: int, domains: "Domains") -> float | None:
        """Return the max/mean load of a map for `layout` with these slots and failure domains.

        Return None before maps exist.
        """

    @property
    def searched(self) -> Collection[Phase]:
        """The phases whose layouts the search chose by predicted speed."""

    @property
    def speed(self) -> "Sequence[PhaseOutlook]":
        """The predicted speed of each phase."""

    @property
    def busy_hours(self) -> "Sequence[tuple[PhaseLoad, Prediction | None]]":
        """The stretches with a load above 100 %, and what the units make then; None if they cannot serve the load."""

    def predict_with(self, phase: Phase, change: Change) -> "Prediction | None":
        """Return the prediction for `phase` after a `change` of the spec, with the present map.

        Return None if the prediction is unknown.
        """


@dataclass(frozen=True)
class Rule:
    """A check, the ids of its findings, and the level that a candidate needs for it.

    The check of a rule about several phases or paths (`each_of`) is called once for each of them. `*` in a path
    stands for each item of a list.
    """

    ids: str  # of all findings that `check` can yield, separated by spaces
    level: Level
    check: Callable[..., Iterable[Finding]]
    each_of: Sequence[str] = ()
    about: str = ""  # what a rule made from a table checks; others say it in the docstring of `check`

    def findings(self, candidate: Any) -> Iterator[Finding]:
        """Yield the rule's findings about `candidate`. A phase or path where a value is unknown is skipped."""
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
        return [(path,) for each in self.each_of for path in (candidate.expand_paths(each) if "*" in each else [each])]


def is_within(level: Level, most: Level) -> bool:
    """Return whether `level` is `most` or comes before it in LEVELS."""
    return LEVELS.index(level) <= LEVELS.index(most)


def limit(path: str, must: str, reason: str, fix: Fix | str, is_broken: Callable[[ResolvedSpec, Phase], bool]) -> Rule:
    """Return a rule that rejects the value at `path` if `is_broken(spec, phase)`: the engine cannot run it.

    `*` in `path` stands for each phase. `must` begins with the rule's id, and `{engine}` in it stands for the engine's
    name.
    """

    def check(c: Candidate) -> Iterator[Finding]:
        spec = c.resolved
        rule = must.format(engine=spec.written.engine_name)
        for phase in spec.phases if path.startswith("*") else spec.phases[:1]:
            if is_broken(spec, phase):
                place = path.replace("*", phase)
                value = reduce(getattr, place.split("."), spec.written)
                yield Finding(place, None if isinstance(value, BaseModel) else value, rule, reason, fix)

    ids, _, rest = must.format(engine="another engine").partition(" ")
    return Rule(ids, "rendered", check, about=f"{path} {rest}: {reason}.")


def report_no_effect(where: str, reason: str, path: str, value: Any = None, fix: Fix | str | None = None) -> Finding:
    """Return the finding that the value at `path` has no effect. `where` ends the sentence `has no effect ...`.

    A field without an effect is an error, since a user who writes a field expects an effect and would get a plan
    that was not intended. The fix is to remove the field, unless `fix` is given.
    """
    return Finding(path, value, f"S560 has no effect {where}", reason, fix or removal(path, words="remove it"))

"""The smallest changes that would make an infeasible spec feasible, each tried before it is printed.

A rule that refuses a spec knows what binds, but not whether a way out is one: more GPUs a unit may need more nodes than
there are. So changes are proposed by `relaxations.py`, from what costs least, and one is printed only when the same
rules have nothing against the spec with it. At most three are, of different fields.

Where memory is short, a change must also leave KV for the requests that the spec asks for. All of them at full length
are tried first, then the share of that which requests usually hold; only the latter where the requests themselves are
too many. A change that leaves room for one request alone is printed only when there is no other. Where phases are short
together and no change is enough for both, the first that does for each are joined. Where nodes are too few besides,
those that units lack are part of every change.

What the planner decided it would decide anew with a change. So the spec as it was written is decided again with each
change that is offered and, where nodes are too few for windows that follow the traffic, with each that is tried.

To check a whole spec costs most. So memory is looked at first, which needs no rule; and no change is checked twice.

It changes no spec: the user does.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, islice, product
from math import inf
from typing import Any

from planner.candidate.candidate import Candidate
from planner.estimate.coverage import fewest_slots
from planner.facts.terms import Phase
from planner.layout.memory import USUAL_SHARE, memory_of
from planner.layout.nodes import nodes_for
from planner.problems.errors import InfeasibleError, SpecError
from planner.problems.finding import Finding, Unknown
from planner.problems.fix import Change, applied
from planner.rules.check import with_values
from planner.rules.engine_limits import runs_layout
from planner.rules.rule import Level
from planner.rules.table import refusals_of
from planner.search.auto import decide
from planner.search.relaxations import AT_THE_PEAK, ORDERS, POINTS, Order, Relaxation
from planner.search.series import first_that, fix_of
from planner.search.unit_sizes import lacking_nodes
from planner.spec.phase import PhaseSpec
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import AUTO

__all__ = ["require_feasible", "with_changes"]

FULL_SHARE, ONE_REQUEST = 1.0, 0.0  # of the KV that all requests of full length would take

MAX_CHANGES = 3

SIZES = ("ep_size", "attention_tp", "redundant_experts")  # of units, that may be `auto`

MEMORY_FIELDS = frozenset(PhaseSpec.model_fields) - {"attention_tp", "gpu"}  # any value may be looked at unchecked
WITHOUT_MEMORY = ("coverage", "cluster.nodes", "cluster.spares")  # paths that begin so


def require_feasible(candidate: Candidate, level: Level, asked: ResolvedSpec) -> None:
    """Raise InfeasibleError, with changes of what is `asked`, where the rules up to `level` refuse the candidate."""
    if refusals := refusals_of(candidate, level):
        raise InfeasibleError(with_changes(refusals, candidate, asked))


def with_changes(refusals: Sequence[Finding], candidate: Candidate, asked: ResolvedSpec) -> Sequence[Finding]:
    """Return `refusals` with up to three changes, each of which would mend all of them.

    They are changes of the `candidate`, which has numbers for each `auto` of the spec that is `asked` for. Where none
    would do, a finding keeps its own fix in words: with it, something else cannot be had. What no relaxation is for has
    a fix that is right by its own rule.
    """
    if not refusals or refusals[0].id not in ORDERS:
        return refusals
    try:
        search = _search_for(refusals, candidate.at("placed"), asked)
        changes = search.changes(refusals)
    except Unknown:  # not even the nodes that units lack can be written
        changes = ()
    fix = fix_of(changes, search.spec) if changes else None
    return [replace(finding, fix=fix or str(finding.fix)) for finding in refusals]


def _search_for(refusals: Sequence[Finding], candidate: Candidate, asked: ResolvedSpec) -> "_Search":
    """Begin with what the planner would decide anew left open, and with the nodes that units lack.

    Raises Unknown where that breaks rules.
    """
    candidate = _with_points_of_auto(candidate)
    needs_nodes = refusals[0].id == "S701"
    if needs_nodes and candidate.resolved.has_windows_of_traffic:
        return _Search(candidate, (), {}, asked)
    start = _with_one_unit_of_auto(candidate)
    lacking = {} if needs_nodes else lacking_nodes(start.resolved)
    start = start.having(lacking) if lacking else start
    return _Search(start, tuple(each.phase for each in start.memory if each.short > 0), lacking, asked)


@dataclass(frozen=True)
class _Goal:
    """What a change has to reach."""

    phases: tuple[Phase, ...]  # that are short of memory, and shall have
    share: float  # of the KV that their requests ask for
    are_all: bool = True  # nothing else may be infeasible; else the rest does not matter


@dataclass(frozen=True)
class _Tried:
    """A candidate with a change, of which rules are asked once."""

    candidate: Candidate

    @cached_property
    def is_feasible(self) -> bool:
        """Return whether no rule refuses it before there are maps.

        A unit that fits into a rack is not tried with `coverage: rack`, since it would most likely stand in one: where
        units stand takes a placement, which takes seconds for a large system.
        """
        return not _may_stand_in_a_rack(self.candidate) and not refusals_of(self.candidate, self.candidate.level)


@dataclass(frozen=True)
class _Search:
    """Candidates around the one where the search starts, each tried once."""

    start: Candidate
    short: tuple[Phase, ...]  # of memory
    lacking: Change  # nodes, without which no change helps: `start` has them
    asked: ResolvedSpec  # with each `auto`
    tried: dict[str, _Tried | None] = field(default_factory=dict)  # by the change; None where nothing has it
    held: dict[str, float] = field(default_factory=dict)  # by what a phase would be

    @property
    def spec(self) -> ResolvedSpec:
        """Return the spec where the search starts."""
        return self.start.resolved

    @property
    def is_at_the_peak(self) -> bool:
        """Return whether nodes are too few for windows that follow the traffic."""
        return self.spec.has_windows_of_traffic and self.spec.written.schedule is not None

    def changes(self, refusals: Sequence[Finding]) -> tuple[Change, ...]:
        """Return those that cost least, up to three of different fields."""
        rows, shares = self._rows(refusals[0].id), self._shares(refusals)
        # A change that leaves room for one request alone is no way out while another one is left.
        tried = [*product(range(len(rows)), shares), *product(range(len(rows)) if self.short else (), [ONE_REQUEST])]
        for number, share in tried:
            found = tuple(islice(self.offered(rows[number], share), MAX_CHANGES))
            if changes := found or tuple(self.joined([*chain(*rows[: number + 1])], share)):
                return tuple(self._as_decided_anew(each) for each in changes)
        return ()

    def _rows(self, rule: str) -> Order:
        return AT_THE_PEAK if self.is_at_the_peak else ORDERS[rule]

    def _shares(self, refusals: Sequence[Finding]) -> list[float]:
        """Return the shares of the asked KV that a change has to leave, in order."""
        if any(finding.path.endswith(".max_requests") for finding in refusals):
            return [USUAL_SHARE]  # who asks for so many requests means usual ones: W101 offers as many
        return [FULL_SHARE, USUAL_SHARE] if self.short else [ONE_REQUEST]

    def offered(self, row: Sequence[Relaxation], share: float) -> Iterator[Change]:
        """Yield the first change of each series that does, without values that stand there already."""
        data, seen = self.spec.document.data, []
        for change in self._firsts(row, _Goal(self.short, share)):
            new = {path: value for path, value in change.items() if applied(data, {path: value}) != data}
            if new not in seen:
                seen.append(new)
                yield {**new, **self.lacking, **new}

    def joined(self, relaxations: Sequence[Relaxation], share: float) -> Iterator[Change]:
        """Yield the first change for each phase that is short, joined, where that does."""
        changes: dict[str, Any] = {}
        for phase in self.short if len(self.short) > 1 else ():
            first = next(self._firsts(relaxations, _Goal((phase,), share, are_all=False)), None)
            if first is None:
                return
            changes |= first
        if changes and self._does(_Goal(self.short, share), changes):
            yield {**changes, **self.lacking, **changes}

    def _firsts(self, relaxations: Sequence[Relaxation], goal: _Goal) -> Iterator[Change]:
        for series in chain.from_iterable(relaxation(self.spec) for relaxation in relaxations):
            first = first_that(series, partial(self._does, goal), partial(self._may_do, goal))
            if first is not None:
                yield first

    def _may_do(self, goal: _Goal, change: Change) -> bool:
        """Return False where memory or slots are too few with `change`, whatever rules say of it."""
        numbers: dict[Phase, dict[str, Any]] = {phase: {} for phase in self.spec.phases}
        for path, value in change.items():
            phase, _, name = path.partition(".")
            if phase in self.spec.phases and name in MEMORY_FIELDS:
                numbers[phase][name] = value
            elif not path.startswith(WITHOUT_MEMORY):
                return True  # a look would not do
        needs_slots = goal.are_all and change.get("coverage", self.spec.written.coverage) != "none"
        return all(self._is_held(phase, each, goal) for phase, each in numbers.items()) and (
            not needs_slots or all(self._covers(phase, each) for phase, each in numbers.items())
        )

    def _is_held(self, phase: Phase, numbers: Mapping[str, Any], goal: _Goal) -> bool:
        """Return whether a phase with other `numbers` has the KV that it shall have; one that is as written has."""
        if phase not in goal.phases and not numbers:
            return True
        key = phase + _key(numbers)
        if key not in self.held:
            self.held[key] = _held(self.spec.trying(phase, numbers), phase)
        return self.held[key] >= (goal.share if phase in goal.phases else ONE_REQUEST)

    def _covers(self, phase: Phase, numbers: Mapping[str, Any]) -> bool:
        """Return whether a GPU has slots enough for experts to survive the loss of a node: a rack takes no fewer."""
        section = self.spec.phase(phase).model_copy(update=numbers)
        fewest = fewest_slots(self.spec, section.ep_size)
        slots = (self.spec.model.num_routed_experts + section.redundant_experts) // section.ep_size
        return fewest is not None and fewest <= slots

    def _does(self, goal: _Goal, change: Change) -> bool:
        """Return whether the candidate having `change` reaches the goal."""
        if _key(change) not in self.tried:
            having = self._having(change)
            self.tried[_key(change)] = _Tried(having) if having else None
        tried = self.tried[_key(change)]
        if tried is None or not self._is_sound(tried.candidate, goal.phases):
            return False
        if goal.are_all and not tried.is_feasible:
            return False
        mended = (*goal.phases, "mixed") if goal.phases else ()  # which may stand in place of what was short
        spec = tried.candidate.resolved
        return all(_held(spec, each) >= goal.share for each in spec.phases if each in mended)

    def _having(self, change: Change) -> Candidate | None:
        """Return the candidate having `change`; None where the planner would find no numbers for its `auto`."""
        return self._decided_anew(change) if self.is_at_the_peak else self.start.having(change)

    def _as_decided_anew(self, change: Change) -> Change:
        """Return `change` and, where the planner would decide something else with it, what else makes it do.

        That is the sizes that stood in place of `auto`, or nodes for windows that follow the traffic.
        """
        sizes = self._sizes_of_auto()
        if self.is_at_the_peak or not (sizes or self.spec.has_windows_of_traffic):
            return change
        decided = self._decided_anew(change)
        if decided is not None and refusals_of(decided, decided.level):
            nodes = lacking_nodes(decided.resolved)
            for both in ({**sizes, **change}, {**change, **nodes}):
                again = self._decided_anew(both) if both != change else None
                if again is not None and not refusals_of(again, again.level):
                    return both
        return change

    def _sizes_of_auto(self) -> Change:
        spec = self.spec
        paths = {f"{phase}.{field}": getattr(spec.phase(phase), field) for phase in spec.phases for field in SIZES}
        return {path: size for path, size in paths.items() if path in spec.document.autos}

    def _decided_anew(self, change: Change) -> Candidate | None:
        """Return what the planner makes of the spec that is asked for and `change`; None where it makes nothing."""
        try:
            spec = decide(with_values(self.asked, change)).spec
        except (SpecError, InfeasibleError):
            return None
        return replace(self.start, document=spec.document, known=spec)

    def _is_sound(self, tried: Candidate, mended: Sequence[Phase]) -> bool:
        """Return whether it breaks no rule and its engine can run it.

        A phase that the engine cannot run as it is written may stay so, unless it is among the `mended`.
        """
        try:
            spec = tried.resolved
        except Unknown:
            return False
        may_stay = [each for each in self.spec.phases if each not in mended and not runs_layout(self.spec, each)]
        return all(each in may_stay or runs_layout(spec, each) for each in spec.phases)


def _key(change: Change) -> str:
    return json.dumps(change, sort_keys=True)


def _may_stand_in_a_rack(candidate: Candidate) -> bool:
    spec = candidate.resolved
    if spec.written.coverage != "rack":
        return False
    racks = Counter(node.rack for node in nodes_for(spec) if not node.unusable)
    return min(each.nodes_per_unit for each in candidate.layouts) <= (spec.cluster.rack_size or max(racks.values()))


def _held(spec: ResolvedSpec, phase: Phase) -> float:
    """Return the share of its requests at full length for which `phase` has KV; negative where not even one fits.

    Prefill computes one request at a time. Memory that nobody knows holds all.
    """
    plan, section = memory_of(spec, phase), spec.phase(phase)
    if plan is None:
        return inf
    asked = section.max_request_tokens * (1 if phase == "prefill" else section.max_requests)
    return plan.kv_tokens / min(asked, section.max_kv_tokens or asked) if plan.short <= 0 else -1.0


def _with_points_of_auto(candidate: Candidate) -> Candidate:
    """Return it with `auto` again where the planner decided what a point asks of a limit: it follows the limit."""
    paths = {f"operating_point.{phase}.{asked}" for phase in candidate.resolved.phases for asked in POINTS.values()}
    decided = paths & candidate.document.autos
    return candidate.having(dict.fromkeys(decided, AUTO)) if decided else candidate


def _with_one_unit_of_auto(candidate: Candidate) -> Candidate:
    """Return it with one unit of each phase whose units the planner decided: of larger units there are fewer."""
    spec = candidate.resolved
    if spec.has_windows_of_traffic:
        return candidate.having({"schedule": None} | {f"{phase}.units": 1 for phase in spec.phases})
    autos = spec.document.autos
    values = {path: 1 for phase in spec.phases if (path := f"{phase}.units") in autos and spec.phase(phase).units > 1}
    return candidate.having(values) if values else candidate

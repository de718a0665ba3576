"""Find the smallest changes that make an infeasible spec feasible, and try each before offering it.

A rule that refuses a spec cannot know whether its fix leads to another refusal: more GPUs per unit may need more nodes
than the cluster has. So `relaxations.py` proposes changes, cheapest first, and this module offers a change only if the
same rules accept the changed spec. It offers at most three changes, of different fields.

If memory is short, a change must also leave KV for the spec's requests. The search first looks for changes that leave
KV for all requests at full length, then for the usual share of that KV. (If `max_requests` itself is refused, it looks
only for the usual share.) KV for a single request is accepted only if no other change helps. If several phases are
short of memory and no single change helps all of them, the first change for each phase is joined. If nodes are missing
too, every change adds them.

With a change, the planner may decide `auto` fields differently. So it decides the original spec again with each offered
change, and with each tried change if nodes are too few for windows that follow the traffic.

Checking a whole spec is expensive. So memory is compared first, without any rule, and no change is checked twice.

The spec itself is not changed: that is left to the user.
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
from planner.problems.fix import Change, Fix, apply_change
from planner.rules.check import change_spec
from planner.rules.engine_limits import runs_layout
from planner.rules.rule import Level
from planner.rules.table import refusals_of
from planner.search.auto import decide
from planner.search.relaxations import ORDERS, PEAK_ORDER, POINT_FIELDS, Order, Relaxation
from planner.search.series import first_success, make_fix
from planner.search.unit_sizes import node_increase
from planner.spec.phase import PhaseSpec
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import AUTO

FULL_SHARE, ONE_REQUEST = 1.0, 0.0  # shares of the KV that all requests take at full length

MAX_CHANGES = 3

SIZES = ("ep_size", "attention_tp", "redundant_experts")  # sizes of a unit that may be `auto`

MEMORY_FIELDS = frozenset(PhaseSpec.model_fields) - {"attention_tp", "gpu"}  # memory can be computed for any value
NON_MEMORY_PATHS = ("coverage", "cluster.nodes", "cluster.spares")  # prefixes of paths


def require_feasible(candidate: Candidate, level: Level, original: ResolvedSpec) -> None:
    """Raise InfeasibleError if the rules up to `level` refuse the candidate.

    The offered fixes are changes of `original`. A fix also says if placing all units anew would do.
    """
    if refusals := refusals_of(candidate, level):
        findings = offer_changes(refusals, candidate, original)
        if candidate.previous is not None and not refusals_of(replace(candidate, previous=None), level):
            findings = [replace(each, fix=_offer_anew(each.fix)) for each in findings]
        raise InfeasibleError(findings)


def _offer_anew(fix: Fix | str) -> Fix:
    """Return `fix` with the alternative to place all units anew, which was tried."""
    changes = fix.changes if isinstance(fix, Fix) else ()
    return Fix(f"{fix}; or move running units: without the previous plan (render --anew) the spec is feasible", changes)


def offer_changes(refusals: Sequence[Finding], candidate: Candidate, original: ResolvedSpec) -> Sequence[Finding]:
    """Return `refusals`, each with a fix of up to three alternative changes, any of which makes the spec feasible.

    The changes are searched with the `candidate`, which has a number for every `auto` of the `original` spec. If no
    change helps, a finding keeps its own fix in words only, since applying it would lead to another refusal. A rule
    without relaxations keeps its fix.
    """
    if not refusals or refusals[0].id not in ORDERS:
        return refusals
    try:
        search = _start_search(refusals, candidate.at("placed"), original)
        changes = search.changes(refusals)
    except Unknown:  # adding the missing nodes already breaks a rule
        changes = ()
    fix = make_fix(changes, search.spec) if changes else None
    return [original.locate(replace(finding, fix=fix or str(finding.fix))) for finding in refusals]


def _start_search(refusals: Sequence[Finding], candidate: Candidate, original: ResolvedSpec) -> "_Search":
    """Return a search that starts from `candidate`, with decided operating points `auto` again and missing nodes added.

    Decided numbers of units are set to 1. Raises Unknown if the resulting spec breaks rules.
    """
    candidate = _reopen_points(candidate)
    needs_nodes = refusals[0].id == "S701"
    if needs_nodes and candidate.resolved.has_windows_of_traffic:
        return _Search(candidate, (), {}, original)
    start = _reduce_auto_units(candidate)
    extra_nodes = {} if needs_nodes else node_increase(start.resolved)
    start = start.with_change(extra_nodes) if extra_nodes else start
    return _Search(start, tuple(each.phase for each in start.memory if each.missing_bytes > 0), extra_nodes, original)


@dataclass(frozen=True)
class _Goal:
    """The KV memory that a change must leave in `phases`, and whether it must make the whole spec feasible."""

    phases: tuple[Phase, ...]  # phases that are short of memory
    share: float  # wanted KV over the KV that all requests of such a phase take at full length
    needs_whole_spec: bool = True  # True: the whole spec must be feasible; False: only memory of `phases` counts


@dataclass(frozen=True)
class _CheckedCandidate:
    """A changed candidate and, computed once, whether the rules accept it."""

    candidate: Candidate

    @cached_property
    def is_feasible(self) -> bool:
        """Whether no rule up to the candidate's level refuses it.

        With `coverage: rack`, a unit that fits into one rack counts as infeasible without a placement: it would
        most likely be placed in one rack, and placing a large system takes seconds.
        """
        return not _may_fit_in_rack(self.candidate) and not refusals_of(self.candidate, self.candidate.level)


@dataclass(frozen=True)
class _Search:
    """A search for changes that make the candidate `start` feasible. Each change is tried once."""

    start: Candidate
    short: tuple[Phase, ...]  # phases that are short of memory
    extra_nodes: Change  # the missing nodes, which `start` already has and every change must add
    original: ResolvedSpec  # before any `auto` was decided
    tried: dict[str, _CheckedCandidate | None] = field(default_factory=dict)  # by change; None: it cannot be decided
    kv_shares: dict[str, float] = field(default_factory=dict)  # by phase and its changed numbers

    @property
    def spec(self) -> ResolvedSpec:
        """The spec of the candidate `start`."""
        return self.start.resolved

    @property
    def is_peak_short(self) -> bool:
        """Whether the nodes are too few for windows that follow the traffic."""
        return self.spec.has_windows_of_traffic and self.spec.written.schedule is not None

    def changes(self, refusals: Sequence[Finding]) -> tuple[Change, ...]:
        """Return up to MAX_CHANGES changes of different fields that make the spec feasible, the cheapest ones found.

        Return none if no change does.
        """
        rows, shares = self._relaxations_for(refusals[0].id), self._wanted_shares(refusals)
        # Accept KV for a single request only after every row failed to leave more.
        tried = [*product(range(len(rows)), shares), *product(range(len(rows)) if self.short else (), [ONE_REQUEST])]
        for number, share in tried:
            found = tuple(islice(self._feasible_changes(rows[number], share), MAX_CHANGES))
            if changes := found or tuple(self._joint_changes([*chain(*rows[: number + 1])], share)):
                return tuple(self._complete_change(each) for each in changes)
        return ()

    def _relaxations_for(self, rule: str) -> Order:
        return PEAK_ORDER if self.is_peak_short else ORDERS[rule]

    def _wanted_shares(self, refusals: Sequence[Finding]) -> list[float]:
        """Return the shares to try, in order. A share is the room for KV over the KV of all requests at full length."""
        if any(finding.path.endswith(".max_requests") for finding in refusals):
            return [USUAL_SHARE]  # as W101 does: so many requests rarely all have full length
        return [FULL_SHARE, USUAL_SHARE] if self.short else [ONE_REQUEST]

    def _feasible_changes(self, row: Sequence[Relaxation], share: float) -> Iterator[Change]:
        """Yield the first change of each series of `row` that makes the spec feasible with enough KV.

        `share` is the wanted KV over the KV that all requests take at full length. Values that the spec has
        already are left out of the change.
        """
        data, seen = self.spec.document.data, []
        for change in self._first_successes(row, _Goal(self.short, share)):
            new = {path: value for path, value in change.items() if apply_change(data, {path: value}) != data}
            if new not in seen:
                seen.append(new)
                yield {**new, **self.extra_nodes, **new}

    def _joint_changes(self, relaxations: Sequence[Relaxation], share: float) -> Iterator[Change]:
        """Yield one change that gives enough KV to several phases that lack it.

        The change joins the first change that succeeds for each phase. `share` is as in `_feasible_changes`. Nothing is
        yielded unless the joint change makes the whole spec feasible.
        """
        changes: dict[str, Any] = {}
        for phase in self.short if len(self.short) > 1 else ():
            first = next(self._first_successes(relaxations, _Goal((phase,), share, needs_whole_spec=False)), None)
            if first is None:
                return
            changes |= first
        if changes and self._reaches(_Goal(self.short, share), changes):
            yield {**changes, **self.extra_nodes, **changes}

    def _first_successes(self, relaxations: Sequence[Relaxation], goal: _Goal) -> Iterator[Change]:
        for series in chain.from_iterable(relaxation(self.spec) for relaxation in relaxations):
            first = first_success(series, partial(self._reaches, goal), partial(self._may_reach, goal))
            if first is not None:
                yield first

    def _may_reach(self, goal: _Goal, change: Change) -> bool:
        """Return False if `change` certainly leaves too little memory or too few slots. No rule is checked."""
        numbers: dict[Phase, dict[str, Any]] = {phase: {} for phase in self.spec.phases}
        for path, value in change.items():
            phase, _, name = path.partition(".")
            if phase in self.spec.phases and name in MEMORY_FIELDS:
                numbers[phase][name] = value
            elif not path.startswith(NON_MEMORY_PATHS):
                return True  # only the rules can tell
        needs_slots = goal.needs_whole_spec and change.get("coverage", self.spec.written.coverage) != "none"
        return all(self._has_kv(phase, each, goal) for phase, each in numbers.items()) and (
            not needs_slots or all(self._has_slots(phase, each) for phase, each in numbers.items())
        )

    def _has_kv(self, phase: Phase, numbers: Mapping[str, Any], goal: _Goal) -> bool:
        """Return whether a phase has the KV that the goal asks for, with `numbers` (field -> number) in its section."""
        if phase not in goal.phases and not numbers:
            return True
        key = phase + _key(numbers)
        if key not in self.kv_shares:
            self.kv_shares[key] = _kv_share(self.spec.with_numbers(phase, numbers), phase)
        return self.kv_shares[key] >= (goal.share if phase in goal.phases else ONE_REQUEST)

    def _has_slots(self, phase: Phase, numbers: Mapping[str, Any]) -> bool:
        """Return whether a phase with `numbers` in its section has slots enough to survive the loss of a node.

        To survive the loss of a rack takes at least as many slots.
        """
        section = self.spec.phase(phase).model_copy(update=numbers)
        fewest = fewest_slots(self.spec, section.ep_size)
        slots = (self.spec.model.num_routed_experts + section.redundant_experts) // section.ep_size
        return fewest is not None and fewest <= slots

    def _reaches(self, goal: _Goal, change: Change) -> bool:
        """Return whether the candidate with `change` is valid and meets the goal. Each change is applied only once."""
        if _key(change) not in self.tried:
            having = self._apply(change)
            self.tried[_key(change)] = _CheckedCandidate(having) if having else None
        tried = self.tried[_key(change)]
        if tried is None or not self._is_valid(tried.candidate, goal.phases):
            return False
        if goal.needs_whole_spec and not tried.is_feasible:
            return False
        mended = (*goal.phases, "mixed") if goal.phases else ()  # one mixed unit may replace the short phases
        spec = tried.candidate.resolved
        return all(_kv_share(spec, each) >= goal.share for each in spec.phases if each in mended)

    def _apply(self, change: Change) -> Candidate | None:
        """Return the candidate with `change`; None if its `auto` fields must be decided again and cannot be."""
        return self._decide_again(change) if self.is_peak_short else self.start.with_change(change)

    def _complete_change(self, change: Change) -> Change:
        """Return `change`, extended if it does not help once `auto` fields of the original spec are decided again.

        An extension writes the sizes that `auto` became, or more nodes for windows that follow the traffic.
        """
        sizes = self._auto_sizes()
        if self.is_peak_short or not (sizes or self.spec.has_windows_of_traffic):
            return change
        decided = self._decide_again(change)
        if decided is not None and refusals_of(decided, decided.level):
            nodes = node_increase(decided.resolved)
            for both in ({**sizes, **change}, {**change, **nodes}):
                again = self._decide_again(both) if both != change else None
                if again is not None and not refusals_of(again, again.level):
                    return both
        return change

    def _auto_sizes(self) -> Change:
        spec = self.spec
        paths = {f"{phase}.{field}": getattr(spec.phase(phase), field) for phase in spec.phases for field in SIZES}
        return {path: size for path, size in paths.items() if path in spec.document.autos}

    def _decide_again(self, change: Change) -> Candidate | None:
        """Apply `change` to the original spec, decide every `auto` anew, and return the candidate.

        Return None if an `auto` cannot be decided.
        """
        try:
            spec = decide(change_spec(self.original, change)).spec
        except (SpecError, InfeasibleError):
            return None
        return replace(self.start, document=spec.document, known=spec)

    def _is_valid(self, tried: Candidate, mended: Sequence[Phase]) -> bool:
        """Return whether the spec of `tried` can be resolved and the engine can run its phases.

        A phase that the engine cannot run in the starting spec either may stay so, unless it is in `mended`.
        """
        try:
            spec = tried.resolved
        except Unknown:
            return False
        may_stay = [each for each in self.spec.phases if each not in mended and not runs_layout(self.spec, each)]
        return all(each in may_stay or runs_layout(spec, each) for each in spec.phases)


def _key(change: Change) -> str:
    return json.dumps(change, sort_keys=True)


def _may_fit_in_rack(candidate: Candidate) -> bool:
    spec = candidate.resolved
    if spec.written.coverage != "rack":
        return False
    racks = Counter(node.rack for node in nodes_for(spec) if not node.unusable)
    return min(each.nodes_per_unit for each in candidate.layouts) <= (spec.cluster.rack_size or max(racks.values()))


def _kv_share(spec: ResolvedSpec, phase: Phase) -> float:
    """Return the room for KV over the KV of all requests of `phase` at full length; -1 if not even one request fits.

    Prefill computes one request at a time. Unknown memory counts as infinite.
    """
    plan, section = memory_of(spec, phase), spec.phase(phase)
    if plan is None:
        return inf
    asked = section.max_request_tokens * (1 if phase == "prefill" else section.max_requests)
    return plan.kv_tokens / min(asked, section.max_kv_tokens or asked) if plan.missing_bytes <= 0 else -1.0


def _reopen_points(candidate: Candidate) -> Candidate:
    """Return the candidate with decided fields of operating points reset to `auto`, so that they follow new limits."""
    paths = {
        f"operating_point.{phase}.{asked}" for phase in candidate.resolved.phases for asked in POINT_FIELDS.values()
    }
    decided = paths & candidate.document.autos
    return candidate.with_change(dict.fromkeys(decided, AUTO)) if decided else candidate


def _reduce_auto_units(candidate: Candidate) -> Candidate:
    """Return the candidate with one unit a phase where the planner decided the number, or traffic makes the schedule.

    A change may make units larger. The planner would then decide on fewer, so the present number must not count.
    """
    spec = candidate.resolved
    if spec.has_windows_of_traffic:
        return candidate.with_change({"schedule": None} | {f"{phase}.units": 1 for phase in spec.phases})
    autos = spec.document.autos
    values = {path: 1 for phase in spec.phases if (path := f"{phase}.units") in autos and spec.phase(phase).units > 1}
    return candidate.with_change(values) if values else candidate

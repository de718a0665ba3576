"""Find the first change of a series that succeeds, and put changes of a spec into words.

A series begins with the change that gives up least. `relaxations.py` proposes series, and the caller's function decides
whether a change succeeds. A series of numbers is searched by bisection: if a number succeeds, all smaller ones do.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from planner.problems.fix import Change, Fix
from planner.spec.resolved import ResolvedSpec

MAX_TRIES = 24  # assumed: most changes to try in a series that bisection cannot search

NO_REPLICAS = "(then no hot expert has a second replica)"


@dataclass(frozen=True)
class NumberSeries:
    """A series of changes, each writing one number at all `paths`, largest first.

    If one succeeds, all smaller ones do.
    """

    paths: tuple[str, ...]
    values: Sequence[float]
    common: Change = field(default_factory=dict)  # part of every change

    def __len__(self) -> int:
        """Return the number of changes."""
        return len(self.values)

    def __getitem__(self, index: int) -> Change:
        """Return the change that writes the value at `index`."""
        return {**self.common, **dict.fromkeys(self.paths, self.values[index])}


Series = Iterable[Change] | NumberSeries


def first_success(
    series: Series, succeeds: Callable[[Change], bool], may_succeed: Callable[[Change], bool] | None = None
) -> Change | None:
    """Return the first change of `series` for which `succeeds` is true; None if no tried change succeeds.

    A NumberSeries is searched by bisection; of any other series at most MAX_TRIES changes are tried. `may_succeed` is a
    cheaper test that is true whenever `succeeds` is. The largest number of a NumberSeries that passes the cheaper test
    usually succeeds, so that number is tried first.
    """
    if not isinstance(series, NumberSeries):
        likely = series if may_succeed is None else filter(may_succeed, series)
        return next((change for change in islice(likely, MAX_TRIES) if succeeds(change)), None)
    most = 0 if may_succeed is None else bisect_left(series, True, key=may_succeed)
    if most == len(series):
        return None
    if may_succeed is not None and succeeds(series[most]):
        return series[most]
    return series[bisect_left(series, True, lo=most, key=succeeds)] if succeeds(series[-1]) else None


def join_change(change: Change, series: Series) -> Series:
    """Return `series` with `change` added to each of its changes."""
    return (
        replace(series, common=change) if isinstance(series, NumberSeries) else [{**change, **each} for each in series]
    )


def make_fix(changes: tuple[Change, ...], spec: ResolvedSpec) -> Fix:
    """Return `changes` as a fix that offers any of them: `nearest: prefill.ep_size 16, or cluster.nodes 22`."""
    return Fix(f"nearest: {', or '.join(_change_in_words(each, spec) for each in changes)}", changes)


def _change_in_words(change: Change, spec: ResolvedSpec) -> str:
    """Return words for the values that a change writes and the fields that it removes."""
    words = " and ".join(f"{path} {_value_in_words(value)}" for path, value in change.items() if value is not None)
    gone = " and ".join(path for path, value in change.items() if value is None)
    text = f"{words} instead of {gone}" if gone else words
    return f"{text} {NO_REPLICAS}" if _loses_replicas(change, spec) else text


def _loses_replicas(change: Change, spec: ResolvedSpec) -> bool:
    """Return whether the change removes all redundant experts of a phase."""
    paths = {f"{phase}.redundant_experts": spec.phase(phase).redundant_experts for phase in spec.phases}
    return any(change.get(path) == 0 < now for path, now in paths.items())


def _value_in_words(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_value_in_words(inner)}' for key, inner in value.items())}}}"
    return value if isinstance(value, str) else json.dumps(value)

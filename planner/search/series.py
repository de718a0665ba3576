"""A series of changes, from the one that gives up least on: the first of them that does, and it in words.

Who relaxes a spec proposes series, and who searches says what a change has to do. A series of numbers is halved: what
works with more of something works with less.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from planner.problems.fix import Change, Fix
from planner.spec.resolved import ResolvedSpec

__all__ = ["Numbers", "Series", "first_that", "fix_of", "joined"]

MAX_TRIES = 24  # of a series that is no number, beyond which the next one is asked: assumed

NO_REPLICAS = "(then no hot expert has a second replica)"


@dataclass(frozen=True)
class Numbers:
    """One number in all `paths`, from the largest on: what works with more works with less."""

    paths: tuple[str, ...]
    values: Sequence[float]
    beside: Change = field(default_factory=dict)

    def __len__(self) -> int:
        """Return how many numbers there are."""
        return len(self.values)

    def __getitem__(self, index: int) -> Change:
        """Return the change with one of the numbers."""
        return {**self.beside, **dict.fromkeys(self.paths, self.values[index])}


Series = Iterable[Change] | Numbers


def first_that(
    series: Series, does: Callable[[Change], bool], may_do: Callable[[Change], bool] | None = None
) -> Change | None:
    """Return the first change that `does`; of numbers it is the largest, found by halving.

    `may_do` is cheaper and refuses nothing that does. Of numbers, the largest that may do mostly does.
    """
    if not isinstance(series, Numbers):
        likely = series if may_do is None else filter(may_do, series)
        return next((change for change in islice(likely, MAX_TRIES) if does(change)), None)
    most = 0 if may_do is None else bisect_left(series, True, key=may_do)
    if most == len(series):
        return None
    if may_do is not None and does(series[most]):
        return series[most]
    return series[bisect_left(series, True, lo=most, key=does)] if does(series[-1]) else None


def joined(change: Change, series: Series) -> Series:
    """Return `series` with `change` beside each of its own."""
    return replace(series, beside=change) if isinstance(series, Numbers) else [{**change, **each} for each in series]


def fix_of(changes: tuple[Change, ...], spec: ResolvedSpec) -> Fix:
    """`nearest: prefill.ep_size 16, or cluster.nodes 22`, for changes of `spec`."""
    return Fix(f"nearest: {', or '.join(_in_words(each, spec) for each in changes)}", changes)


def _in_words(change: Change, spec: ResolvedSpec) -> str:
    """Return what to write, and in place of what."""
    words = " and ".join(f"{path} {_written(value)}" for path, value in change.items() if value is not None)
    gone = " and ".join(path for path, value in change.items() if value is None)
    told = f"{words} instead of {gone}" if gone else words
    return f"{told} {NO_REPLICAS}" if _loses_replicas(change, spec) else told


def _loses_replicas(change: Change, spec: ResolvedSpec) -> bool:
    """Return whether a phase that has redundant experts gets none."""
    paths = {f"{phase}.redundant_experts": spec.phase(phase).redundant_experts for phase in spec.phases}
    return any(change.get(path) == 0 < now for path, now in paths.items())


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_written(inner)}' for key, inner in value.items())}}}"
    return value if isinstance(value, str) else json.dumps(value)

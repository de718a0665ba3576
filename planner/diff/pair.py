"""Two plans with all that their comparison needs: each is measured by what the other is made for.

The former plan is judged under the new expert loads (`former.py`), and the new one by the former yardsticks
(`yardsticks.py`). Whoever compares what runs with a spec asks here, so that all get the same verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.compiler import Compiled
from planner.diff.change import Change
from planner.diff.diff import compare_plans
from planner.diff.former import judge_former
from planner.diff.yardsticks import Remeasured, measure_by_former
from planner.facts.loads import Loads
from planner.plan.plan import Plan


@dataclass(frozen=True)
class Pair:
    """Two plans to compare, and notes on how they came about."""

    before: Plan
    after: Plan
    notes: tuple[str, ...]
    judged: Plan  # `before` under the expert loads of `after`
    remeasured: Remeasured  # `after` under the yardsticks of `before`
    edits: Mapping[str, str | None]  # manifests of the folder of `before` that its plan renders differently

    @classmethod
    def of(
        cls,
        before: Plan,
        found: Compiled | Plan,
        after: Plan | None = None,
        notes: Sequence[str] = (),
        on_figures: Sequence[str] = (),
        loads: Loads | None = None,
        edits: Mapping[str, str | None] | None = None,
    ) -> "Pair":
        """Return what runs, `before`, and what was `found` for a spec; `after` is the plan of `found` unless given.

        `on_figures` are notes on the figures of `before`. They are void if it is judged by figures for other loads.
        `loads` are the measured expert loads that `before` was made for, if the caller has read them. `edits`
        are what `find_edits` finds in the folder of `before`.
        """
        if after is None:
            after = found if isinstance(found, Plan) else found.plan
        remeasured = measure_by_former(before, found, loads)
        judged = judge_former(before, found)
        told = (*(on_figures if judged is before else ()), *notes)
        return cls(before, after, told, judged, remeasured, edits or {})

    def compare(
        self, files: Mapping[str, str] | None = None, no_figures: str = "", added: Sequence[str] = ()
    ) -> Change:
        """Return the change; `compare_plans` says what `files`, `no_figures` and `added` are.

        Raises InfeasibleError if an engine cannot run its plan.
        """
        return compare_plans(
            self.before, self.after, self.notes, files, no_figures, self.judged, self.remeasured, added, self.edits
        )

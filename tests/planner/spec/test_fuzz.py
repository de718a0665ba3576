"""Whatever is in a spec file, `plan` answers with an exit status of the contract, soon. More: `fuzzing.py`."""

import os

import pytest

from tests.planner.spec.fuzzing import MAX_SECONDS, mutated_specs, outcome

COUNT = 500 if os.environ.get("CI") else 100


@pytest.mark.slow
def test_mutated_specs_are_planned_or_refused(tmp_path):
    """So many of a fixed seed: planned, wrong or infeasible, never a traceback; and some of each are among them."""
    outcomes = [outcome(content, tmp_path) for content in mutated_specs(seed=0, count=COUNT)]
    statuses = [status for status, _ in outcomes]

    assert set(statuses) == {0, 2, 3}
    assert statuses.count(0) >= COUNT // 20
    assert max(seconds for _, seconds in outcomes) < MAX_SECONDS  # a bomb that is expanded takes minutes

"""Whatever is in a spec file, `plan` answers with an exit status of the contract, soon. More: `fuzzing.py`."""

from tests.planner.fuzzing import MAX_SECONDS, mutated_specs, outcome


def test_mutated_specs_are_planned_or_refused(tmp_path):
    """500 of a fixed seed: planned, wrong or infeasible, never a traceback; and some of each are among them."""
    outcomes = [outcome(content, tmp_path) for content in mutated_specs(seed=0, count=500)]
    statuses = [status for status, _ in outcomes]

    assert set(statuses) == {0, 2, 3}
    assert statuses.count(0) >= 25


def test_no_mutated_spec_takes_long(tmp_path):
    """Counted in one process, where a bomb that is expanded takes minutes: far from what a busy machine adds."""
    slowest = max(seconds for _, seconds in (outcome(content, tmp_path) for content in mutated_specs(seed=2, count=60)))

    assert slowest < 10 * MAX_SECONDS

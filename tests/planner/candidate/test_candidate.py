"""What a candidate promises: it never changes, it thinks each thing once, and a change makes another one."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.candidate import candidate as candidates
from planner.candidate.candidate import Candidate
from planner.problems.finding import Unknown
from planner.rules.check import change_spec, check_spec

PUBLISHED = check_spec(Path(__file__).parents[3] / "stacks" / "specs" / "h800-one-pair.yaml")


@settings(max_examples=15)
@given(slots=st.integers(0, 8), requests=st.integers(128, 512), length=st.sampled_from([8192, 32_768]))
def test_having_a_change_is_having_written_it(slots, requests, length):
    """The law: a candidate with a change says what the changed spec says, and the one it came from says what it did."""
    change = {
        "decode.redundant_experts": 32 + 144 * slots,
        "decode.max_requests": requests,
        **{f"{phase}.max_request_tokens": length for phase in ("prefill", "decode")},
    }
    before = Candidate.of(PUBLISHED)
    memory = before.memory
    after = before.with_change(change)

    assert after.memory == Candidate.of(change_spec(PUBLISHED, change)).memory
    assert before.memory is memory
    assert before.with_change({}).memory == memory


def test_each_pass_runs_once(monkeypatch):
    """However many questions rest on it."""
    runs = []
    monkeypatch.setattr(
        candidates,
        "memory_of",
        lambda spec, phase, pass_=candidates.memory_of: runs.append(phase) or pass_(spec, phase),
    )
    candidate = Candidate.of(PUBLISHED)
    for _ in range(2):
        assert candidate.memory
        assert candidate.warnings is not None

    assert runs == ["prefill", "decode"]


def test_what_rests_on_a_mistake_is_unknown():
    """The spec breaks a rule: nobody can say what its memory is, and whoever asks learns why."""
    candidate = Candidate.of(PUBLISHED).with_change({"decode.ep_size": 100})
    with pytest.raises(Unknown) as unknown:
        _ = candidate.memory

    assert [finding.id for finding in unknown.value.__cause__.findings] == ["S501", "S502"]


def test_a_candidate_judges_nothing():
    """Memory that is short is an answer; only units that stand nowhere are none."""
    candidate = Candidate.of(PUBLISHED).with_change({"decode.redundant_experts": 32 + 144 * 40, "cluster.nodes": 4})

    assert candidate.memory[1].missing_bytes > 0
    with pytest.raises(Unknown):
        _ = candidate.placement


def test_a_candidate_answers_up_to_its_level():
    """Whoever only validates waits for no placement, and whoever tries changes for no map."""
    laid_out, placed = (Candidate.of(PUBLISHED).at(level) for level in ("laid out", "placed"))

    assert laid_out.memory
    with pytest.raises(Unknown):
        _ = laid_out.placement
    assert placed.with_change({"decode.max_requests": 100}).placement.units
    with pytest.raises(Unknown):
        _ = placed.maps

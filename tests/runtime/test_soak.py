"""A hundred random requests against the real engine; `python -m tests.runtime.soak 2000` is the long form."""

import pytest

from tests.runtime.soak import MAX_GROWTH_BYTES, small_engine, soak


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return small_engine(tmp_path_factory.mktemp("soak"))


@pytest.mark.parametrize("kind", ["mixed", "pair"])
def test_every_answer_is_that_of_the_request_alone_and_nothing_stays(engine, kind):
    """Whatever came, was preempted or aborted beside it; all pages are free at the end, and memory stays flat."""
    report = soak(engine, kind, number=50, seed=1)

    assert report.wrong == []
    assert report.answered + report.aborted == 50
    assert min(report.aborted, report.preemptions) > 0
    assert report.pages_left_behind == 0
    assert report.growth_bytes < MAX_GROWTH_BYTES
    assert report.is_clean

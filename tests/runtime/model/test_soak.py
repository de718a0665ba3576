"""A hundred random requests against real engines; `python -m tests.runtime.soak 2000` is the long form."""

import pytest

from tests.runtime.soak import MAX_GROWTH_BYTES, small_checkpoint, small_engine, soak, soak_ranks


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return small_checkpoint(tmp_path_factory.mktemp("soak"))


@pytest.fixture(scope="module")
def engine(checkpoint):
    return small_engine(checkpoint)


def check(reports, number):
    """Check that nothing was wrong, nothing stayed, and the rare events happened."""
    for report in reports:
        assert report.wrong == []
        assert report.pages_left_behind == 0
        assert report.tensor_bytes_left_behind == 0
        assert report.growth_bytes < MAX_GROWTH_BYTES
        assert report.is_clean
        assert report.preemptions > 0
    assert sum(report.answered + report.aborted for report in reports) == number
    assert sum(report.aborted for report in reports) > 0


@pytest.mark.parametrize("kind", ["mixed", "pair"])
def test_every_answer_is_that_of_the_request_alone_and_nothing_stays(engine, kind):
    """Each answer is right whatever happens beside it. At the end all pages are free and memory is flat."""
    check([soak(engine, kind, number=38, seed=1)], 38)


@pytest.mark.whole
def test_ranks_in_lockstep_answer_each_request_as_one_does_alone(checkpoint, free_port):
    """Two ranks of a unit, each with work at times, answer each request as one rank does alone."""
    check(soak_ranks(checkpoint, nodes=(0, 0), number=24, seed=2, port=free_port()), 24)

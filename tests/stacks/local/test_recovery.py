"""The demo under load while its processes are killed and stopped: all callers get the text of a day without faults."""

import random
import signal

import pytest

from tests.benchmarks.faults import Load, expected_texts, restarts, strike
from tests.stacks.deployments import Tidemill

KINDS = ("decode rank", "prefill rank", "decode node", "prefill node", "gateway")
FAULTS = [(kind, number) for kind in KINDS for number in (signal.SIGKILL, signal.SIGSTOP)]


@pytest.fixture(scope="module")
def expected(demo: Tidemill) -> list[str]:
    """The texts of a greedy and of a drawn answer, while nothing happens."""
    return expected_texts(demo.host, 2)


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "number"), FAULTS, ids=[f"{number.name} {kind}" for kind, number in FAULTS])
def test_nobody_sees_that_a_process_is_gone(demo, expected, kind, number):
    """Streams pause, go on with the right text and show no error; the process, and its whole unit, is started again.

    A gateway's own streams break off: asked again with the same key, they have the right text.
    """
    before = restarts(demo.status())
    with Load(demo.host, expected) as load:
        strike(demo, load, kind, number, random.Random(0))

    assert load.findings.wrong == []
    assert load.findings.num_answers > 0
    assert restarts(demo.status()) > before

"""A small deployment under load while processes are killed and stopped: all texts are those of a day without faults."""

import random
import signal
from collections.abc import Iterator

import pytest

from tests.benchmarks.faults import Load, expected_texts, hosts_of, restarts, strike
from tests.stacks.deployments import HOSTS, Tidemill

KINDS = ("decode rank", "prefill rank", "decode node", "prefill node", "gateway")
FAULTS = [(kind, number) for kind in KINDS for number in (signal.SIGKILL, signal.SIGSTOP)]


PHASE = {"ep_size": 1, "precision": "fp32", "max_requests": 4, "max_batch_tokens": 64, "max_request_tokens": 256}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, spec_writer) -> Iterator[Tidemill]:
    """Two gateways, a prefill and a decode unit of one rank each, which start again in seconds."""
    folder = tmp_path_factory.mktemp("pair")
    tidemill = Tidemill(next(HOSTS), folder / "state")
    done = tidemill.up(spec_writer(folder, prefill=PHASE, decode=dict(PHASE), gateway={"replicas": 2}))
    assert done.returncode == 0, done.stderr
    yield tidemill
    tidemill.run("down")


@pytest.fixture(scope="module")
def expected(pair: Tidemill) -> list[str]:
    """The texts of a greedy and of a drawn answer, while nothing happens."""
    return expected_texts(pair.host, 2)


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "number"), FAULTS, ids=[f"{number.name} {kind}" for kind, number in FAULTS])
def test_nobody_sees_that_a_process_is_gone(pair, expected, kind, number):
    """Streams pause, go on with the right text and show no error; the process, and its whole unit, is started again.

    A gateway's own streams break off: asked again with the same key, at the other gateway, they have the right text.
    The other one's streams do not.
    """
    before = restarts(pair.status())
    with Load(hosts_of(pair), expected) as load:
        strike(pair, load, kind, number, random.Random(FAULTS.index((kind, number))))

    assert load.findings.wrong == []
    assert load.findings.num_answers > 0
    assert restarts(pair.status()) > before

"""What a kubelet is answered by the controller."""

import errno
import urllib.error
import urllib.request
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from stacks.controller import health
from stacks.controller.health import STALLED_S, Health, serve_probes
from stacks.kube.errors import ProviderError

HERE = "127.0.0.1"


class Clock:
    """Seconds, as a test sets them."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.mark.parametrize(
    ("looks", "after_s", "healthy", "ready"),
    [
        ([], 0, 200, 503),
        ([True], 1, 200, 200),
        ([True, False], 1, 200, 503),
        ([False, True], 1, 200, 200),
        ([True], STALLED_S, 503, 503),
        ([], STALLED_S, 503, 503),
    ],
)
def test_a_controller_lives_while_looks_end_and_is_ready_while_they_go_well(looks, after_s, healthy, ready, clock):
    """An API server that does not answer is no reason to start it again; a look that never ends is."""
    health = Health(clock)
    for well in looks:
        health.note_end(went_well=well)
    clock.now = after_s

    assert (health.answer("/healthz"), health.answer("/readyz")) == (healthy, ready)


def test_kubelets_are_answered_by_http(clock):
    """The answer is a status without a body: there is nothing else to see."""
    health = Health(clock)

    with serve_probes(health, HERE, 0) as port:
        before = [build_status(port, path) for path in ("/healthz", "/readyz", "/metrics")]
        health.note_end(went_well=True)

        assert before == [200, 503, 404]
        assert build_status(port, "/readyz") == 200


def test_an_address_that_is_not_this_pods_is_a_sentence(clock):
    """So is a port that another process has."""
    with ExitStack() as both:
        port = both.enter_context(serve_probes(Health(clock), HERE, 0))
        with pytest.raises(ProviderError, match=f"cannot listen on {HERE}, port {port}: .*in use"):
            both.enter_context(serve_probes(Health(clock), HERE, port))


def build_status(port, path):
    """The status of an answer without words."""
    try:
        with urllib.request.urlopen(f"http://{HERE}:{port}{path}", timeout=30) as answer:
            assert answer.read() == b""
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_controller_without_a_descriptor_waits_for_one(monkeypatch):
    """The kubelet's connection stays where it is, so asking again at once would take all of a core."""

    def accept(_):
        raise OSError(errno.EMFILE, "Too many open files")

    slept = []
    monkeypatch.setattr(health, "time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr("socketserver.TCPServer.get_request", accept)
    with pytest.raises(OSError, match="Too many open files"):
        health._Server.get_request(health._Server.__new__(health._Server))

    assert slept == [health.PAUSE_S]

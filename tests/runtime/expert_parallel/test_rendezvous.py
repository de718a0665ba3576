"""The ranks of a unit meet, however late some are and wherever the leader's name led at first."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from runtime.errors import PeerLost
from runtime.expert_parallel import group as parallel
from runtime.expert_parallel import rendezvous
from runtime.expert_parallel.group import GlooGroup
from runtime.expert_parallel.rendezvous import MeetingPoint
from tests.runtime.joined_groups import joined_groups

ADDRESS = "127.0.0.1"
NOBODY = "127.0.0.77"


def test_ranks_whose_loading_takes_longer_than_a_step_still_join(monkeypatch, free_port):
    """A rank may load for longer than a step may take."""
    monkeypatch.setattr(parallel, "STEP_TIMEOUT", timedelta(seconds=1))

    assert _join_two(free_port(), late_s=2.5) == [True, True]


def test_a_leader_is_found_that_has_no_address_at_first_and_then_a_stale_one(monkeypatch, free_port, capsys):
    """Ranks find their leader although its name has no address at first, and then a stale one."""
    answers = [socket.gaierror("Name or service not known"), NOBODY, ADDRESS]

    def look_up(host, *_):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, OSError):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answer, 0))]

    monkeypatch.setattr(rendezvous, "CALL_TIMEOUT", timedelta(seconds=1))
    port = free_port()
    threading.Thread(target=GlooGroup(0, 2).join, args=(_at(port, first=True),), daemon=True).start()
    monkeypatch.setattr(rendezvous.socket, "getaddrinfo", look_up)
    GlooGroup(1, 2).join(_at(port, first=False))

    assert answers == [ADDRESS]
    assert capsys.readouterr().err.count("tidemill: waiting for the unit's leader") == 1


@pytest.mark.parametrize(
    ("address", "leader"), [("::1", "::1"), ("0:0:0:0:0:0:0:1", "::1"), ("127.0.0.1", "localhost")]
)
def test_a_unit_meets_over_either_version_of_ip(free_port, address, leader):
    """The leader's name is looked up in the IP version of the node's own address."""
    if ":" in address and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    port, stores = free_port(), []

    def meet(rank):
        stores.append(rendezvous.meet(MeetingPoint(leader, port, rank == 0, address), rank, 2))

    ranks = [threading.Thread(target=meet, args=(rank,), daemon=True) for rank in (0, 1)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(30)

    assert len(stores) == 2


def test_nobody_comes_in_after_the_ranks(free_port):
    """After the ranks have joined, the store takes no more connections, and the ranks still reach each other."""
    port = free_port()
    first, second = joined_groups(2, port)

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((ADDRESS, port), 5).close()
    with ThreadPoolExecutor(2) as ranks:
        assert (
            list(ranks.map(lambda group, part: group.gather(part), (first, second), (b"mi", b"ll")))
            == [[b"mi", b"ll"]] * 2
        )


def test_a_leader_who_never_answers_is_named(monkeypatch, free_port):
    """A leader that never answers is named after the time-out."""
    monkeypatch.setattr(rendezvous, "JOIN_TIMEOUT", timedelta(seconds=0.5))
    monkeypatch.setattr(rendezvous, "CALL_TIMEOUT", timedelta(seconds=0.2))
    port = free_port()

    with pytest.raises(PeerLost, match=f"the unit's leader {ADDRESS}:{port} cannot be reached"):
        GlooGroup(1, 2).join(_at(port, first=False))


def has_ipv6():
    """Return whether loopback has an IPv6 address."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def _at(port: int, first: bool) -> MeetingPoint:
    return MeetingPoint(ADDRESS, port, first, ADDRESS)


def _join_two(port: int, late_s: float) -> list[bool]:
    """Return the votes of two ranks, of which the second comes `late_s` after the first."""
    votes = [False, False]

    def rank(number: int) -> None:
        time.sleep(number * late_s)
        group = GlooGroup(number, 2)
        group.join(_at(port, first=number == 0))
        votes[number] = group.any(number == 1)

    ranks = [threading.Thread(target=rank, args=(number,), daemon=True) for number in (0, 1)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(30)
    return votes

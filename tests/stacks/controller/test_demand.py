"""How many units demand asks for, over every short sequence of looks; and what the gateway says of it."""

import re
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise, product

import pytest

from stacks.controller import figures
from stacks.controller.decide import decide, required_units
from stacks.controller.demand import Floor, Limits, Load, Room, demanded_units, follow_demand, follow_phase
from stacks.controller.figures import Figures, NoFigures, parse_figures, read_figures
from stacks.controller.lend import decide_marks
from stacks.controller.situation import Force, Orders
from tests.ports import free_port
from tests.stacks.controller.days import HOUR, MIDNIGHT, NIGHT, OFF, READY, TIMETABLE, UNITS, WARM_UP_S, situation
from tests.stacks.controller.test_decide import EVENING, EVERY_STATE, MORNING, applied, on_at, ready, wanted_at

LIMITS = Limits(used=0.5, backlog=2, after_s=20, stay_s=50)
ROOM = Room(num_requests=8, kv_tokens=1000, prompt_tokens=0)
LOOK_S = 10
AT_NIGHT = MIDNIGHT + 2 * HOUR
NIGHT_STATES = (READY, OFF, READY, OFF)


@pytest.mark.parametrize(
    ("load", "room", "asked"),
    [
        (Load(2, 8, 0, 0), ROOM, 2),
        (Load(2, 9, 0, 0), ROOM, 3),
        (Load(2, 1, 1001, 0), ROOM, 3),
        (Load(2, 80, 0, 0), ROOM, 4),
        (Load(2, 0, 0, 0), ROOM, 0),
        (Load(2, 99, 0, 1024), Room(0, 0, 512), 1),
        (Load(2, 99, 0, 1025), Room(0, 0, 512), 2),
    ],
    ids=["just enough", "one more", "for its KV", "at most twice", "none", "prompts of two steps", "of more"],
)
def test_units_are_asked_for_by_what_is_shortest(load, room, asked):
    """Places, KV or prompts, of which a unit may have so much."""
    assert demanded_units(load, room, LIMITS) == asked


@pytest.mark.parametrize("back_s", [1, 3600, 86_400])
def test_a_clock_that_is_set_back_keeps_units_no_longer(back_s):
    """A floor ends, and more is asked for, after as much time as ever, counted from the step."""
    floor = Floor(3, MIDNIGHT + LIMITS.stay_s, 3, since=MIDNIGHT)
    stepped = follow_phase(floor, 4, 1, MIDNIGHT - back_s, LIMITS)
    more = follow_phase(stepped, 4, 1, MIDNIGHT - back_s + LIMITS.after_s, LIMITS)
    fewer = follow_phase(replace(stepped, since=None, peak=0), 0, 1, MIDNIGHT - back_s + LIMITS.stay_s, LIMITS)

    assert (stepped.units, more.units, fewer.units) == (3, 4, 0)


def test_every_sequence_of_loads_keeps_the_promises():
    """None of four units starts before it was asked for so long, or goes before its stay is over, in six looks."""
    for asked in product(range(4), repeat=6):
        for planned in range(1, 4):
            floors = followed(asked, planned)
            on = [max(planned, floor.units) for floor in floors]
            for look, (before, after) in enumerate(pairwise([planned, *on])):
                if after > before:  # it was asked for at this look and for `after_s` before
                    assert min(asked[max(look - 2, 0) : look + 1]) > before
                    assert look >= 2
                    assert asked[look] == after
                if after < before:
                    recent = asked[max(look - 5, 0) : look + 1]  # of `stay_s`
                    assert max(recent) <= before
                    assert after >= asked[look]


def followed(asked, planned):
    """The floor after each look."""
    floors, floor = [], None
    for look, number in enumerate(asked):
        floor = follow_phase(floor, number, planned, look * LOOK_S, LIMITS)
        floors.append(floor)
    return floors


def test_what_is_asked_for_all_the_time_is_on_soon_and_what_nobody_asks_for_goes():
    """After `after_s`, and after twice the stay at most."""
    for asked in range(4):
        floors = followed([asked] * 4 + [0] * 11, planned=1)
        assert max(1, floors[3].units) == max(1, asked)
        assert floors[-1].units == 0


def test_a_unit_that_demand_needs_stays_when_the_day_would_have_it_go():
    """Three serve and are asked for when the day's three become one."""
    busy = follow_phase(None, 3, 3, 0, LIMITS)

    assert busy.units == 3
    assert follow_phase(busy, 3, 1, LOOK_S, LIMITS).units == 3


def test_a_phase_without_figures_keeps_its_floor():
    """Its units may all be on their way."""
    before = {"decode": Floor(2, 100.0, 2), "prefill": Floor(1, 100.0, 1)}
    found = follow_demand(before, {"decode": Load(1, 8, 0, 0)}, {"decode": ROOM}, {"decode": 1}, 0, LIMITS)

    assert found.floors["prefill"] == before["prefill"]
    assert not found.expected_units


def asking(states, floors, orders=None):
    """A look in which demand asks for so many units."""
    return replace(situation(states, orders), floors=floors)


@pytest.mark.parametrize("now", [MORNING - WARM_UP_S, MORNING, EVENING, AT_NIGHT])
def test_demand_never_takes_from_the_day(now):
    """In every state: what the day wants is on, so is what demand asks for, and each phase keeps what both want."""
    wanted = Counter(UNITS[name] for name in wanted_at(now)) | Counter(decode=2)
    on = on_at(now) | {"d1"}
    for states in EVERY_STATE:
        seen = asking(states, {"decode": 2})
        scales = decide(seen, now).scales

        started, drained = ({each.unit for each in scales if each.is_on is is_on} for is_on in (True, False))
        assert started == {unit.name for unit in seen.units if unit.name in on and unit.replicas == 0}
        assert drained.isdisjoint(on)
        if drained:
            assert ready(applied(seen.units, scales)) >= wanted


def test_the_next_unit_of_a_phase_starts_ahead_of_the_schedule():
    """The schedule wants it in the morning; a person reads why it starts at night."""
    decision = decide(asking(NIGHT_STATES, {"decode": 2}), AT_NIGHT)

    assert [(each.unit, each.is_on, each.reason) for each in decision.scales] == [("d1", True, "demand asks for it")]
    assert decision.extra_demand == ("demand asks for 2 decode units, the day for 1",)
    assert decision.reason == f"{decision.extra_demand[0]}; 1 of 2 decode units are ready"


def test_demand_gets_no_more_than_the_plan_has():
    """Neither units that are not there, nor more nodes at a time than the day's largest state."""
    small = replace(TIMETABLE, steps=tuple(replace(step, num_nodes=3) for step in TIMETABLE.steps))
    many = asking(NIGHT_STATES, {"decode": 3})
    tight = replace(asking(NIGHT_STATES, {"prefill": 2, "decode": 2}), timetable=small)

    assert decide(many, AT_NIGHT).wanted == ("p0", "d0", "d1")
    assert decide(many, AT_NIGHT).unmet_demand == (
        "demand asks for 3 decode units, and the plan's 4 nodes have room for 2: plan again with more",
    )
    assert decide(tight, AT_NIGHT).wanted == ("p0", "p1", "d0")
    assert [each.partition(",")[0] for each in decide(tight, AT_NIGHT).unmet_demand] == [
        "demand asks for 2 decode units"
    ]


def test_a_persons_order_is_stronger_than_demand():
    """A state that is forced gets no further units, and held ones stay as they are."""
    forced = Orders(force=Force("22:00", AT_NIGHT + HOUR))
    seen = asking(NIGHT_STATES, {"decode": 2}, forced)

    assert decide(seen, AT_NIGHT).wanted == NIGHT
    assert decide(seen, AT_NIGHT).unmet_demand == ("demand asks for 2 decode units, and state 22:00 is forced",)
    assert required_units(seen, AT_NIGHT) == {*NIGHT}
    assert not decide(asking(NIGHT_STATES, {"decode": 2}, Orders(hold_until=AT_NIGHT + 1)), AT_NIGHT).scales


def test_nodes_are_to_be_left_while_demand_lasts_that_may_take_them():
    """So that jobs hear of it before the unit starts."""
    seen = situation(NIGHT_STATES)
    units = tuple(replace(unit, nodes=(unit.name,)) for unit in seen.units)
    marks = decide_marks(replace(seen, units=units, lends_nodes=True, expected_units=frozenset({"d1"})), AT_NIGHT)

    assert (marks.free, marks.reclaimed) == (("p1",), ("d1",))


PAGE = """# TYPE tidemill_phase_ready_units gauge
tidemill_phase_ready_units{model_name="of \\"phase=\\"",phase="decode"} 2.0
tidemill_phase_ready_units{model_name="tiny",phase="prefill"} 0.0
tidemill_phase_requests{model_name="tiny",phase="decode"} 7.0
tidemill_phase_kv_tokens{model_name="tiny",phase="decode"} 1e+03
tidemill_num_requests_waiting{model_name="tiny"} 5.0
tidemill_unit_straggler{model_name="tiny",unit="chat-decode-1"} 3.0
"""


def test_the_gateways_page_is_read():
    """A phase without a ready unit is not there: its load is of nobody."""
    assert parse_figures({"10.0.0.1": PAGE}) == Figures(
        {"decode": Load(2, 7.0, 1000.0, 0.0)}, frozenset({"chat-decode-1"})
    )


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (PAGE.replace("7.0", "NaN"), "the gateway's metrics cannot be read: requests of decode is nan"),
        (PAGE.replace("7.0", "-1"), "the gateway's metrics cannot be read: requests of decode is -1.0"),
        (PAGE.replace("7.0", "1e300"), "the gateway's metrics cannot be read: requests of decode is 1e\\+300"),
        (PAGE.replace("7.0", "many"), "the gateway's metrics cannot be read: could not convert"),
        (
            'tidemill_num_requests_failed_total{model_name="tiny"} -3',
            "the gateway's metrics cannot be read: num_requests_failed_total is -3",
        ),
    ],
)
def test_a_page_that_is_wrong_is_named(page, why):
    """Nothing is decided by it."""
    with pytest.raises(NoFigures, match=why):
        parse_figures({"10.0.0.1": page})


def test_a_hostile_page_costs_no_more_than_its_length():
    """No part of a line is read again and again: four megabytes are read about once."""
    for line in ('tidemill_phase_x{phase="decode"} ', 'tidemill_unit_straggler{unit="a"} ', 'tidemill_phase_x{a="'):
        assert parse_figures({"": line + line.partition("{")[2] * (figures.MAX_BYTES // 16)}).loads == {}


@pytest.mark.parametrize("url", ["http://[/x", "http://host:port/x"])
def test_an_address_that_is_none_is_named(url):
    """The cluster's schema admits it."""
    with pytest.raises(NoFigures, match=f"{re.escape(url)} is no address: "):
        read_figures(url)


def test_a_gateway_that_does_not_answer_is_named():
    """With where it was asked."""
    url = f"http://127.0.0.1:{free_port()}/metrics"

    with pytest.raises(NoFigures, match=f"{url} does not answer: "):
        read_figures(url)


def test_a_gateway_that_never_answers_keeps_nobody(monkeypatch):
    """Whatever it is that takes so long."""
    monkeypatch.setattr(figures, "ASK_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        with pytest.raises(NoFigures, match=f"{url} does not answer"):
            read_figures(url)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"])
def test_a_gateway_that_answers_without_end_keeps_no_thread(monkeypatch, head):
    """Nor its socket: the other side sees that nobody listens any more."""
    monkeypatch.setattr(figures, "ASK_S", 0.2)
    before = set(threading.enumerate())
    with _dripping(head) as url, pytest.raises(NoFigures):
        read_figures(url)

    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


def test_a_page_that_is_too_long_is_not_read(monkeypatch):
    """Half a page would say something else."""
    monkeypatch.setattr(figures, "MAX_BYTES", 3)
    with _dripping(b"HTTP/1.0 200 OK\r\n\r\nabcd") as url, pytest.raises(NoFigures, match=r"more than 3 B|within 2 s"):
        read_figures(url)


def test_every_gateway_of_a_name_is_asked(monkeypatch):
    """Those that answer tell, and nobody waits for one that is gone."""
    resolve, port = socket.getaddrinfo, free_port()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{number}", port)) for number in (1, 2, 3)]
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **by: found if host == "gateways" else resolve(host, *more, **by)
    )
    page = PAGE + 'tidemill_num_requests_failed_total{model_name="tiny"} 3.0\n'
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(page)}\r\n\r\n{page}".encode()
    with _dripping(answer, "127.0.0.2", port), _dripping(answer, "127.0.0.3", port):
        asked = read_figures(f"http://gateways:{port}/metrics")

    assert asked.failed == {"127.0.0.2": 3, "127.0.0.3": 3}
    assert asked.loads["decode"].num_ready == 2


@contextmanager
def _dripping(head, host="127.0.0.1", port=0):
    """Give the address of a server that answers `head` at once and then a byte now and then."""
    with socket.create_server((host, port)) as server:
        threading.Thread(target=_drip, args=(server, head), daemon=True).start()
        yield f"http://{host}:{server.getsockname()[1]}/metrics"


def _drip(server, head):
    """Answer with `head` and then a byte now and then, until nobody listens."""
    with suppress(OSError), server.accept()[0] as peer:
        peer.sendall(head)
        while True:
            peer.sendall(b"x")
            time.sleep(0.05)

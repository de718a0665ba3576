"""The gateway's metrics show each phase's work and units that a slow rank holds up."""

from types import SimpleNamespace

from prometheus_client import CollectorRegistry, generate_latest

from runtime.gateway.ranks.prefix_index import PrefixIndex
from runtime.gateway.ranks.rank_connection import Rank
from runtime.gateway.ranks.rank_load import RankLimits, RequestSize
from runtime.gateway.ranks.registry import Unit
from runtime.gateway.telemetry.metrics import GatewayMetrics
from runtime.gateway.telemetry.phase_loads import PhaseLoads
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Hello, State, StepTime

SIZE = RequestSize(100, 28)
PREFILL, DECODE = {"num_requests": 2, "phase": "prefill"}, {"num_requests": 3, "phase": "decode"}


def unit(name, *, phase, num_requests=0, state="ready", own_us=(20_000, 20_000)):
    """Return a unit of two ranks; the first has requests that have not begun."""
    ranks = []
    for number, own in enumerate(own_us):
        hello = Hello(name, phase, number, 2, "node-0", 1, "sha256:unit", "sha256:kv", None, None)
        rank = Rank(hello, SimpleNamespace(write=None), RankLimits(8, 4096, 0), PrefixIndex(64))
        rank.handle(State(state))
        rank.handle(StepTime(own))
        for request in range(0 if number else num_requests):
            rank.subscribe(f"{name}-{request}", SIZE, lambda *_: None)
        ranks.append(rank)
    return Unit(name, phase, 2, tuple(ranks))


def read_metrics(*units):
    """Return metric -> label -> value."""
    loads = PhaseLoads("tiny")
    loads.sample(units)
    return {
        family.name.removeprefix("tidemill_"): {sample.labels.popitem()[1]: sample.value for sample in family.samples}
        for family in loads.collect()
    }


def test_a_phases_work_is_the_sum_over_its_ready_units():
    """A phase's work is the sum over its ready units."""
    found = read_metrics(
        unit("p0", **PREFILL), unit("d0", **DECODE), unit("d1", **DECODE), unit("d2", phase="decode", state="loading")
    )

    assert found["phase_ready_units"] == {"prefill": 1, "decode": 2}
    assert found["phase_requests"] == {"prefill": 2, "decode": 6}
    assert found["phase_prompt_tokens"] == {"prefill": 200, "decode": 0}
    assert found["phase_kv_tokens"] == {"prefill": 0, "decode": 6 * -(-128 // PAGE_TOKENS) * PAGE_TOKENS}


def test_a_phase_without_a_ready_unit_has_no_figures():
    """A phase without a ready unit has no figures."""
    assert not any(read_metrics(unit("p0", phase="prefill", state="loading")).values())


def test_a_unit_that_a_rank_holds_up_is_named():
    """A unit that a slow rank holds up is shown with the factor, and no other unit is."""
    slow = unit("d0", phase="decode", own_us=(60_000, 20_000))

    assert read_metrics(slow, unit("d1", phase="decode"))["unit_straggler"] == {"d0": 3}


def test_prometheus_reads_them():
    """Prometheus reads these figures beside the gateway's other metrics."""
    registry = CollectorRegistry()
    GatewayMetrics(registry, "tiny").phases.sample([unit("d0", **DECODE)])

    assert 'tidemill_phase_requests{model_name="tiny",phase="decode"} 3.0' in generate_latest(registry).decode()

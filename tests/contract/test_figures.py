"""What the gateway's metrics port says of its phases, and what the controller reads there."""

from types import SimpleNamespace

from prometheus_client import CollectorRegistry, generate_latest

from runtime.gateway.ranks.rank_load import RankLimits, RankLoad, Work
from runtime.gateway.telemetry.metrics import GatewayMetrics
from stacks.controller.demand import Load
from stacks.controller.figures import Figures, parse_figures

LIMITS = RankLimits(8, 4096, 0)


def unit(name, phase, *works, straggler=None):
    """A unit that is ready, as the gateway's registry has it; each work is a rank's."""
    loads = [RankLoad(name, rank, phase, work, LIMITS) for rank, work in enumerate(works)]
    ranks = tuple(SimpleNamespace(load=each) for each in loads)
    return SimpleNamespace(name=name, phase=phase, is_ready=True, ranks=ranks, straggler=straggler, refusal=None)


def test_the_controller_reads_what_the_gateway_measures():
    """Every figure of every phase, the unit that a rank holds up, and what failed, whatever the model is called."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, 'a model "of phase=", } 1')
    metrics.failed.inc(3)
    metrics.phases.sample(
        [
            unit("demo-prefill-0", "prefill", Work(3, 700, 9000, 0), Work(1, 20, 210, 0)),
            unit("demo-decode-0", "decode", Work(5, 0, 0, 640), Work(2, 0, 0, 128), straggler=(1, 2.5)),
            unit("demo-decode-1", "decode", Work(0, 0, 0, 0)),
        ]
    )

    assert parse_figures({"10.0.0.1": generate_latest(registry).decode()}) == Figures(
        {"prefill": Load(1, 4, 0, 720), "decode": Load(2, 7, 768, 0)}, frozenset({"demo-decode-0"}), {"10.0.0.1": 3}
    )

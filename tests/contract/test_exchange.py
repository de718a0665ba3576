"""The planner and the runtime, which may not import each other, know the same numbers of DeepEP."""

from planner.facts import exchange
from runtime.expert_parallel import deep_ep
from runtime.kernels.gpu import contracts


def test_both_know_which_units_deep_ep_takes():
    """The planner keeps them for other engines; the runtime takes another exchange for other units."""
    assert exchange.NORMAL_SIZES == contracts.NORMAL_SIZES
    assert exchange.NVLINK_PEERS == contracts.NVLINK_PEERS == deep_ep.RANKS_PER_NODE

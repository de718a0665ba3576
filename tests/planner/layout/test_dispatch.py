"""Which phases' maps keep groups of experts on nodes."""

from types import SimpleNamespace

import pytest

from planner.facts.catalog import GPUS
from planner.families import MODELS
from planner.layout.dispatch import groups_on_nodes
from planner.layout.layout import lay_out
from planner.problems.fix import apply_change
from planner.spec.schema import Spec
from tests.planner.layout.test_memory import PAIR

DEEPSEEK = MODELS["deepseek-v3"]


@pytest.mark.parametrize(
    ("phase", "change", "gpu", "num_groups"),
    [
        ("prefill", {}, "h800", 8),
        ("decode", {}, "h800", 1),
        ("prefill", {}, "gb200", 1),
        ("prefill", {"prefill.attention_tp": 32}, "h800", 1),
    ],
    ids=["prefill", "decode", "NVLink to the next node", "one attention group"],
)
def test_groups_stay_on_nodes_where_that_saves_bytes_between_nodes(phase, change, gpu, num_groups):
    """With normal dispatch over NICs. A unit that is one attention group dispatches nothing."""
    spec = Spec.model_validate(apply_change(PAIR, change))
    layout = lay_out(SimpleNamespace(written=spec, phase=spec.phase, cluster=spec.cluster, model=DEEPSEEK), phase)

    assert groups_on_nodes(DEEPSEEK, GPUS[gpu], 8, layout) == num_groups

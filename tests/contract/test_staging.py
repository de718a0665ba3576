"""A rank's staging is as large as its plan says, at the real sizes of models."""

from types import SimpleNamespace

import pytest
import torch

from planner.families import MODELS
from planner.layout.memory import STAGED_EXPERTS
from planner.layout.weights import weights_of
from runtime.expert_parallel.epochs import switch
from runtime.expert_parallel.epochs.staging import Staging
from runtime.expert_parallel.group import SoloGroup
from runtime.kernels.backend import Backend, Batched
from runtime.kernels.device import HostLink
from runtime.kernels.fp8 import E4M3
from runtime.kernels.ops import Ops
from runtime.model.fp8 import Fp8Experts
from runtime.model.moe import LocalExperts

META = Ops(torch.device("meta"))  # shapes and types without memory


@pytest.mark.parametrize(
    ("precision", "dtype", "experts"),
    [("fp8", E4M3, Fp8Experts), ("bf16", torch.bfloat16, LocalExperts), ("fp32", torch.float32, LocalExperts)],
)
def test_staging_takes_what_the_plan_says(precision, dtype, experts):
    """Two of DeepSeek-V3's experts, scales included, are within 2 % of two slots of the plan's in one layer."""
    model = MODELS["deepseek-v3"]
    sizes = {"hidden_size": model.hidden_size, "moe_intermediate_size": model.experts.intermediate_size}
    config = SimpleNamespace(**sizes, power_of_two_scales=False)
    layer = experts(1, config, Backend(dtype, META, Batched()))
    staging = Staging(
        SoloGroup(), [SimpleNamespace(expert_tensors=layer.tensors)], 1, switch.STAGED_EXPERTS, HostLink()
    )
    taken = sum(tensor.nbytes for expert in staging._room for tensor in expert.values())
    planned = STAGED_EXPERTS * weights_of(model, precision).slot // model.num_moe_layers

    assert switch.STAGED_EXPERTS == STAGED_EXPERTS
    assert taken == pytest.approx(planned, rel=0.02)

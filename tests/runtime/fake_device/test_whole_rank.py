"""One rank at DeepSeek-V3's real sizes on a fake GPU waits for nothing, and needs the planned memory.

What is shown is the runtime's own code: where its tensors are, for which values the host waits, and how many bytes it
allocates. `pytest -s` prints planned beside counted. `tests/gpu/one_rank.py` runs such a rank on a real GPU.
"""

import time

import pytest
import torch

from planner.layout.working_memory import GRANULE_BYTES, NCCL_BYTES, WORKSPACE_BYTES
from runtime.kernels.gpu.packages import BLACKWELL, HOPPER
from runtime.model.engine import _warm_up_steps
from runtime.protocol.counting import num_pages
from tests.runtime.fake_device.deployments import plan_deployment
from tests.runtime.fake_device.ranks import KernelPath, ReferenceOps
from tests.runtime.fake_device.watcher import HostWait

UNITS = {
    "EP144 decode": ("deepseek-h800.yaml", "decode", {}),
    "EP32 prefill": ("deepseek-h800.yaml", "prefill", {}),
    "EP72 decode": ("deepseek-h800.yaml", "decode", {"ep_size": 72}),
    "8 x H200 mixed": ("h200-single-node.yaml", "mixed", {}),
    "EP144 decode, B200": ("deepseek-h800.yaml", "decode", {"gpu": "b200"}),
    "EP32 prefill, B200": ("deepseek-h800.yaml", "prefill", {"gpu": "b200"}),
}
# ratio that planned bytes may be off by
CLOSE = {"weights": 0.005, "kv": 0.005, "activations": 0.1}


@pytest.mark.whole
@pytest.mark.parametrize("unit", ["EP144 decode", "EP32 prefill"])
def test_the_reference_never_leaves_the_device(unit):
    """A decode step waits only for its result, a prefill step once in a dispatch."""
    began = time.monotonic()
    spec_file, phase, changes = UNITS[unit]
    deployment = plan_deployment(spec_file, phase, **changes)
    rank = deployment.rank(ReferenceOps(), num_dense=1, num_moe=2)
    logits = rank.step(*deployment.largest_step())
    print(f"\n{unit}: {rank.ops.num_reads} reads in {rank.num_dispatches} dispatches, {_seconds_since(began)}")

    assert rank.num_dispatches == 2 * 2  # of two layers, by two micro-batches
    assert rank.ops.num_reads == (0 if phase == "decode" else rank.num_dispatches)
    assert logits.dtype == torch.float32
    with rank.watch_device(), pytest.raises(HostWait):
        logits.cpu()


@pytest.mark.parametrize(
    "unit",
    [
        "EP144 decode",
        "EP32 prefill",
        pytest.param("EP72 decode", marks=pytest.mark.whole),
        pytest.param("8 x H200 mixed", marks=pytest.mark.whole),
        pytest.param("EP144 decode, B200", marks=pytest.mark.whole),
        pytest.param("EP32 prefill, B200", marks=pytest.mark.whole),
    ],
)
def test_the_ledger_is_what_the_runtime_allocates(unit):
    """The planner's weights and KV are within 0.5 % of the runtime's, activations within 10 %."""
    began = time.monotonic()
    spec_file, phase, changes = UNITS[unit]
    deployment = plan_deployment(spec_file, phase, **changes)
    ops = KernelPath(BLACKWELL if unit.endswith("B200") else HOPPER)
    rank = deployment.rank(ops, num_dense=3, num_moe=3)
    rank.step(*deployment.largest_step())
    planned, counted = _planned_bytes(deployment.ledger), _whole_model_bytes(rank, deployment.config)
    asked = _deep_ep_bytes(rank) + NCCL_BYTES
    _print_table(unit, planned, counted, deployment.ledger.buffers, asked, began)

    for part, tolerance in CLOSE.items():
        assert counted[part] == pytest.approx(planned[part], rel=tolerance), part
    assert counted["activations"] <= planned["activations"]
    if deployment.ledger.phase == "mixed":  # planned for both of DeepEP's forms, of which the runtime uses one
        assert asked < deployment.ledger.buffers
    else:
        assert asked == deployment.ledger.buffers


@pytest.mark.whole
def test_a_warm_up_needs_no_more_memory_than_is_planned():
    """No step of a warm-up exceeds the planned memory or breaks a kernel's contract."""
    deployment = plan_deployment("h200-single-node.yaml", "mixed")
    rank = deployment.rank(KernelPath(HOPPER), num_dense=1, num_moe=2)
    limits = deployment.limits
    table = list(range(num_pages(limits.max_request_tokens)))
    for step in _warm_up_steps(table, [7] * limits.max_request_tokens, limits.max_batch_tokens):
        rank.step(*step)

    assert 0 < rank.watcher.allocations.most["activations"] <= deployment.ledger.activations


def _deep_ep_bytes(rank):
    """Return the bytes of DeepEP's buffers, with NVSHMEM's part in whole granules, and its workspace."""
    (buffer,) = rank.ops.packages.deep_ep.buffers
    granules = -(-buffer.num_rdma_bytes // GRANULE_BYTES) * GRANULE_BYTES
    return buffer.num_nvl_bytes + granules + WORKSPACE_BYTES


def _planned_bytes(ledger):
    kv = ledger.kv_tokens * ledger.kv_bytes_per_token
    return {"weights": ledger.weight_bytes, "kv": kv, "activations": ledger.activations}


def _whole_model_bytes(rank, config):
    """Return the bytes of a rank with all layers, from one with a layer of each kind."""
    dense, moe = rank.model.model.layers[:3], rank.model.model.layers[3:]
    operations = rank.watcher.operations
    assert operations[1] == operations[2]  # the first layer tells FlashMLA of the step
    assert operations[3] == operations[4]  # the last layer has fewer rows in prefill
    sizes = [[sum(values.nbytes for values in layer.parameters()) for layer in layers] for layers in (dense, moe)]
    assert [len(set(of_kind)) for of_kind in sizes] == [1, 1]
    num_more = config.first_k_dense_replace - len(dense), config.num_moe_layers - len(moe)
    most = rank.watcher.allocations.most
    layers = len(rank.model.model.layers)
    return {
        "weights": most["model"] + sum(of_kind[0] * more for of_kind, more in zip(sizes, num_more, strict=True)),
        "kv": most["kv"] * config.num_hidden_layers // layers,
        "activations": most["activations"],
    }


def _print_table(unit, planned, counted, buffers, asked, began):
    print(f"\n{unit} ({_seconds_since(began)})       planned GB  counted GB")
    for part, value in planned.items():
        print(f"  {part:24}{value / 1e9:12.3f}{counted[part] / 1e9:12.3f}  {counted[part] / value - 1:+.2%}")
    print(f"  {'DeepEP and NCCL':24}{buffers / 1e9:12.3f}{asked / 1e9:12.3f}")


def _seconds_since(began):
    return f"{time.monotonic() - began:.1f} s"

"""One rank of a shipped unit at real sizes on one GPU, with random weights and nobody to exchange rows with.

It is what a rank of the plan would be: the launch file's map with its replicas, the engine, the cache, and the step
loop of its phase. Only the weights are made up, and the other ranks are played (`played_peers.py`).
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from planner.compiler import compile_plan
from runtime.checkpoint import resolve
from runtime.expert_parallel.deep_ep import deep_ep_form
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.kernels.backend import Backend
from runtime.kernels.batch_invariant import Batched
from runtime.kernels.device import CudaRecorder, HostLink
from runtime.kernels.fp8 import E4M3
from runtime.kernels.gpu.ops import GpuOps
from runtime.kernels.gpu.packages import HOPPER, Packages
from runtime.launch import read_unit_launch
from runtime.model import deepseek, moe
from runtime.model.captured_steps import CapturedSteps
from runtime.model.deepseek import DeepseekV3
from runtime.model.engine import Engine
from runtime.model.fp8 import Fp8Rows
from tests.gpu.played_peers import ONE, PlayedDeepEp, PlayedGroup

__all__ = ["HostKernels", "LoneRank", "launched", "recorder_of", "shrunk"]

LOGITS = 0.06  # spread of the head's weights: most of what a token draws from are then a few hundred others
SMALL = {  # of a model that a CPU computes in a test; DeepEP, FP8's blocks and the map set the rest
    "vocab_size": 4096,
    "hidden_size": 2048,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "num_attention_heads": 4,
    "q_lora_rank": 128,
    "first_k_dense_replace": 1,
}


def launched(deployment):
    """Return the launch file of the first unit of a phase that the planner writes for the deployment's spec."""
    files = compile_plan(deployment.spec).launch_files()
    name = next(name for name in files if f"-{deployment.ledger.phase}-" in name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(files[name])
        return read_unit_launch(path)


def shrunk(deployment, launch, **limits):
    """Return both for a model that a CPU computes, with these limits."""
    limits = msgspec.structs.replace(launch.limits, **limits)
    return replace(deployment, config=replace(deployment.config, **SMALL)), msgspec.structs.replace(
        launch, limits=limits
    )


class LoneRank:
    """A rank of a launched unit, with `layers` of the model's. `clock.span` takes the place of the model's spans."""

    def __init__(self, config, launch, ops, clock, layers):
        self.launch, self.ops, self.clock, self.whole_config = launch, ops, clock, config
        self.config = replace(config, num_hidden_layers=layers)
        self.peers = PlayedDeepEp(ops.device)
        ops.packages = replace(ops.packages, deep_ep=self.peers)
        deepseek.span = moe.span = clock.span
        for attend in ("attend_pages", "attend_causally"):
            setattr(ops, attend, _within(clock, "attention core", getattr(ops, attend)))
        self.engine = LoneEngine(self.config, launch, ops)
        self.model, self.overlap = self.engine.model, self.engine.model.overlap
        fill(self.model)

    @property
    def slots(self):
        """The number of experts that this rank holds in a layer."""
        return len(self.launch.expert_map.physical_to_logical[0]) // len(self.launch.ranks)

    @property
    def weight_bytes(self):
        """Bytes of all parameters of the layers that were made."""
        return sum(values.nbytes for values in self.model.parameters())

    def record(self, cache, recorder):
        """Record decode's steps, as its phase does before requests come."""
        limits = self.launch.limits
        self.engine._captured = CapturedSteps(
            self.model, cache, recorder, limits.max_requests, limits.max_request_tokens
        )

    def replay_s(self, decoding, times):
        """Return the seconds of replays of a step of these requests, whose inputs are put in once before."""
        captured = self.engine._captured
        captured._inputs.write(decoding)
        replay = captured._steps[len(decoding)].recording.replay
        return [self.clock.seconds(replay) for _ in range(times)]

    def recorded_stages(self, cache, decoding, recorder):
        """Record one step with its spans, replay it, and return the seconds of each stage."""
        captured = self.engine._captured
        step = captured._record(len(decoding), _Watched(recorder, self.clock))
        captured._inputs.write(decoding)
        for _ in range(2):
            step.recording.replay()
        return self.clock.of_stages(self.clock.take())

    def scaled(self, step_s, stages):
        """Return the seconds of a step of all layers, and of its stages, from those of the layers that were run.

        `stages` are the sums of their spans. What is in none of them is counted with the layers; it is negative where
        the events around the stages cost more.
        """
        whole, made = self.whole_config, self.config
        of_layers = whole.num_hidden_layers / made.num_hidden_layers
        of_moe = whole.num_moe_layers / made.num_moe_layers
        once = {"mlp", "head", "sampling"}
        factors = {name: 1 if name in once else of_layers if _is_attention(name) else of_moe for name in stages}
        scaled = {name: seconds * factors[name] for name, seconds in stages.items()}
        rest_s = step_s - sum(stages.values())
        return sum(scaled.values()) + rest_s * of_layers, scaled


class LoneEngine(Engine):
    """An engine whose weights nobody loads."""

    def __init__(self, config, launch, ops):
        self.checkpoint, self.config = resolve("bundled:demo"), config
        self.backend = Backend(E4M3, ops, Batched())
        self._only_decodes, self._captured = launch.phase == "decode", None
        maps = launch.expert_map.physical_to_logical[: config.num_moe_layers]
        group = PlayedGroup(launch.rank_nodes())
        max_step_tokens = launch.limits.max_requests if self._only_decodes else None
        overlap = OVERLAPS[launch.overlap]
        self.model = LoneModel(config, maps, group, self.backend, overlap, launch.local_first_nodes, max_step_tokens)


class LoneModel(DeepseekV3):
    """A model that exchanges its rows by DeepEP, or what stands for it, on a CPU too."""

    def _dispatcher(self, group, max_step_tokens):
        config, backend = self.config, self.backend
        capacity = None if max_step_tokens is None else max(self.overlap.shares(max_step_tokens))
        rows = Fp8Rows(config.hidden_size, config.power_of_two_scales, backend.ops)
        x_1D = torch.zeros(1, config.hidden_size, dtype=torch.bfloat16, device=backend.device)
        slots = self.load.rows.shape[1]
        form = deep_ep_form(group, slots, config.num_experts_per_tok, rows, x_1D, backend.ops, capacity)
        assert form is not None
        return form


class HostKernels(GpuOps):
    """The path to a GPU's kernels on a CPU, where none of them runs."""

    def __init__(self):
        super().__init__(torch.device("cpu"), Packages(HOPPER))
        self.link = HostLink()

    def _matmul_fp32(self, x_TD, w_ED):
        return x_TD.float() @ w_ED.float().mT

    def _has_cudnn(self, q, k, v):
        return False


class HostRecorder:
    """Computes anew at each replay."""

    def record(self, compute):
        result = compute()

        class Recording:
            def replay(self):
                result.copy_(compute())

        return Recording(), result


def recorder_of(device):
    """Return what records steps on this device."""
    return CudaRecorder(device) if device.type == "cuda" else HostRecorder()


class _Watched:
    """Keeps the spans of what is recorded, and not of what is computed before."""

    def __init__(self, recorder, clock):
        self._recorder, self._clock = recorder, clock

    def record(self, compute):
        with self._clock.watching():
            return self._recorder.record(compute)


def _within(clock, name, function):
    def timed(*arguments):
        with clock.span(name):
            return function(*arguments)

    return timed


def _is_attention(name):
    return name.startswith(("attention", "KV"))


def fill(model):
    """Random codes, small scales, and small numbers: values that stay finite."""
    for name, values in model.named_parameters():
        if values.dtype == E4M3:
            values.data.view(torch.uint8).random_(0, ONE)
        elif "scale" in name:
            values.data.fill_(2**-10)
        elif name == "model.norm.weight":
            values.data.fill_(1)
        else:
            values.data.normal_(0, LOGITS if name == "lm_head.weight" else 0.02)

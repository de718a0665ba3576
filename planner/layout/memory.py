"""The memory of one GPU: what uses its bytes, and how many tokens of KV fit into what is left.

Running out of memory is the first way an expert-parallel deployment fails, and it can be predicted before anything is
deployed. All ranks of a phase have the same split: they hold different experts, but equally many. Nothing here
estimates speed.

Glossary, with DeepSeek-V3's decode unit on an H800 as the worked example:
    weights        resident parts + routed slots              20.1 GB + 2 x 2.554 GB = 25.2 GB
    activations    of the largest step that limits allow      (`working_memory.py`)
    buffers        dispatch, combine and collectives          (`working_memory.py`)
    reserve        context, library workspaces, CUDA graphs   (and SGLang's headroom)
    KV per token   over all layers                            576 x 2 B x 61 = 70,272 B
    KV per request windows and states, of constant size       none; 75.5 MB for Qwen3-Next

The invariant: weights + activations + buffers + reserve + KV == usable bytes. KV consists of the constant bytes of
`max_requests` requests, whole pages, and a rest smaller than a page. A layout fits if at least one request of full
length fits.

On `cpu` there is nothing to split: ranks share the host's memory, and no spec states its size. There a unit may change
its expert map while it serves, and a rank receives experts into `staging_bytes` of the host's memory.

A pod needs host memory too, as far as a plan knows it: ranks on the node x (a rank's cache of prompts' KV in host
memory + a process). Requests whose KV waits outside the GPU use the same memory as this cache, which gives way to them
(`runtime/kv/host_memory.py`), so they add nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil

from planner.facts.engines import OURS
from planner.facts.model import Model
from planner.facts.quantisation import KV_BYTES, kv_dtype
from planner.facts.terms import EngineName, Phase
from planner.layout.dispatch import dispatched_tokens
from planner.layout.layout import PhaseLayout, lay_out
from planner.layout.weights import Weights, weights_of, with_expansion, with_padding
from planner.layout.working_memory import (
    HEADROOM_SOURCE,
    activation_bytes,
    buffer_bytes,
    fill_tiles,
    sglang_working_bytes,
    sparse_buffer_bytes,
    vllm_sampler_bytes,
)
from planner.spec.phase import PhaseSpec
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec

# Requests hold at least this share of the KV of requests of full length: DeepSeek's decode has room for 22 of 128, and
# its requests hold 4,989 of 32,768 tokens on average.
USUAL_SHARE = 1 / 8

RESERVE_BYTES = 3_758_096_384  # 3.5 GiB
CUDA_GRAPH_BYTES = 2_695_091_978  # 2.51 GiB

# part of the reserve -> source, as plans show it. Plans list sources that begin with `assumed` separately.
SOURCES = {
    "context": "github.com/ai-dynamo/aiconfigurator 095f58a5 aic-core/src/aiconfigurator_core/systems/h100_sxm.yaml, "
    "other_mem, alike for all GPUs",
    "cuda_graphs": "assumed: alike for all models, 2.51 GiB as one of them took with 51 batch sizes; "
    "github.com/vllm-project/vllm issue 50576",
    "headroom": HEADROOM_SOURCE,
}

# Phases whose ranks compute prompts and keep the prompts' KV. A decode rank receives KV from prefill instead.
KEEPS_KV: Sequence[Phase] = ("prefill", "mixed")
PROCESS_BYTES = 2**29  # a lower bound: importing torch and the runtime on a CPU took 540 MiB

STAGED_EXPERTS = 2  # that a rank has room for in a switch: runtime/expert_parallel/epochs/switch.py

# The runtime's pages, like FlashMLA's: github.com/deepseek-ai/FlashMLA 26d30779 README.md
KV_PAGE_TOKENS = 64


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of one GPU of `phase`, in bytes."""

    phase: Phase
    gpu_bytes: int
    weights: Weights
    num_slots: int
    activations: int
    buffers: int
    cuda_graphs: int
    headroom: int  # what SGLang keeps free beyond activations and graphs; 0 for other engines
    kv_bytes_per_token: int
    kv_bytes_per_request: int  # windows and states, of constant size
    max_requests: int
    max_request_tokens: int
    max_kv_tokens: int | None

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights on the GPU, its routed expert slots included."""
        return self.weights.total(self.num_slots)

    @property
    def read_bytes(self) -> int:
        """Return the bytes of weights that a rank reads, without matrices that the engine makes after reading."""
        return self.weight_bytes - self.weights.absorbed

    @property
    def parts(self) -> dict[str, int]:
        """Return part of the weights -> its bytes on the GPU; `routed` is the part of the expert slots."""
        parts = asdict(self.weights)
        return parts | {"routed": self.num_slots * parts.pop("slot")}

    @property
    def reserve(self) -> int:
        """The bytes reserved for the driver's context, library workspaces, CUDA graphs and SGLang's headroom."""
        return RESERVE_BYTES + self.cuda_graphs + self.headroom

    @property
    def sources(self) -> dict[str, str]:
        """Return the source of each part of the reserve."""
        parts = {"context": RESERVE_BYTES, "cuda_graphs": self.cuda_graphs, "headroom": self.headroom}
        return {part: source for part, source in SOURCES.items() if parts[part]}

    @property
    def free(self) -> int:
        """Return the bytes left for KV; negative if the layout does not fit."""
        return self.gpu_bytes - self.weight_bytes - self.activations - self.buffers - self.reserve

    @property
    def fixed_kv(self) -> int:
        """The bytes of windows and states, which engines reserve for `max_requests` requests."""
        return self.max_requests * self.kv_bytes_per_request

    @property
    def kv_tokens(self) -> int:
        """Return how many tokens of KV fit, in whole pages, and at most `max_kv_tokens` rounded up to pages."""
        fitting = self.tokens_in(self.free)
        return fitting if self.max_kv_tokens is None else min(fitting, round_up_to_pages(self.max_kv_tokens))

    def tokens_in(self, free: int) -> int:
        """Return how many tokens of KV, in whole pages, fit into `free` bytes beside the KV of constant size."""
        return max(0, free - self.fixed_kv) // (KV_PAGE_TOKENS * self.kv_bytes_per_token) * KV_PAGE_TOKENS

    @property
    def full_requests(self) -> int:
        """The number of requests of `max_request_tokens` whose KV fits at the same time."""
        return self.kv_tokens // round_up_to_pages(self.max_request_tokens)

    @property
    def missing_bytes(self) -> int:
        """The bytes missing for the KV of one request of full length; 0 or less if it fits."""
        return round_up_to_pages(self.max_request_tokens) * self.kv_bytes_per_token + self.fixed_kv - self.free


def memory_of(spec: ResolvedSpec, phase: Phase) -> MemoryPlan | None:
    """Return the memory plan of a GPU of `phase`, even if not everything fits.

    Return None if the size of the GPU's memory is unknown, as on `cpu`.
    """
    return split_memory(spec, lay_out(spec, phase)) if spec.gpu_of(phase).usable_bytes else None


def split_memory(checked: ResolvedSpec, layout: PhaseLayout) -> MemoryPlan:
    """Divide the memory of a GPU with this layout into its uses, even if these do not all fit."""
    model, gpu = checked.loaded_model.one_of(layout.attention_tp), checked.gpu_of(layout.phase)
    spec = checked.phase(layout.phase)
    assert gpu.usable_bytes is not None
    dispatched = dispatched_tokens(spec, checked.written.engine_name)
    if checked.written.engine_name == OURS and layout.phase == "decode":
        dispatched = fill_tiles(dispatched, layout.ep_size)
    activations = activation_bytes(model, layout, spec, dispatched)
    if checked.written.engine_name == "vllm":
        activations = max(activations, vllm_sampler_bytes(model, spec.max_requests))
    # Prefill uses no graphs, because its shapes do not repeat.
    cuda_graphs = 0 if layout.phase == "prefill" else CUDA_GRAPH_BYTES
    is_sglang = checked.written.engine_name == "sglang"
    working = sglang_working_bytes(layout.phase, spec, gpu.usable_bytes) if is_sglang else 0
    kv_value = KV_BYTES[kv_dtype(spec.precision, spec.kv_precision)]
    return MemoryPlan(
        phase=layout.phase,
        gpu_bytes=gpu.usable_bytes,
        weights=_loaded_weights(checked, model, layout),
        num_slots=layout.slots_per_gpu,
        activations=activations,
        buffers=buffer_bytes(model, layout, dispatched) + _sparse_buffer(checked, model, spec, kv_value),
        cuda_graphs=cuda_graphs,
        headroom=max(0, working - activations - cuda_graphs),
        kv_bytes_per_token=model.kv_bytes_per_token(kv_value),
        kv_bytes_per_request=model.kv_bytes_per_request(spec.max_request_tokens, kv_value),
        max_requests=spec.max_requests,
        max_request_tokens=spec.max_request_tokens,
        max_kv_tokens=spec.max_kv_tokens,
    )


def round_up_to_pages(num_tokens: int) -> int:
    """Return `num_tokens`, the tokens of one request, rounded up to whole KV pages."""
    return -(-num_tokens // KV_PAGE_TOKENS) * KV_PAGE_TOKENS


def kv_bytes(num_tokens: int, bytes_per_token: int, fixed_bytes: int) -> int:
    """Return the bytes of KV of `num_tokens`, with `fixed_bytes` for windows and states."""
    return num_tokens * bytes_per_token + fixed_bytes


def static_fraction(engine: EngineName, weight_bytes: int, kv_bytes: int, gpu_bytes: int) -> float:
    """Return the share of a GPU's memory for weights and KV, which SGLang calls static, rounded up to four digits.

    For SGLang the share is of the memory that is free before weights are loaded, which is assumed to be all memory but
    the reserve. SGLang finds at least as much free, so all of the planned KV has room.
    """
    free = gpu_bytes - (RESERVE_BYTES if engine == "sglang" else 0)
    return ceil(10_000 * (weight_bytes + kv_bytes) / free) / 10_000


def loaded_bytes(spec: ResolvedSpec, layout: PhaseLayout) -> tuple[int, int]:
    """Return (bytes of the weights that one rank reads, bytes of its expert slots among these), for CPUs as well."""
    weights = _loaded_weights(spec, spec.loaded_model.one_of(layout.attention_tp), layout)
    slots = layout.slots_per_gpu * weights.slot
    return weights.total(layout.slots_per_gpu) - weights.absorbed, slots


def node_bytes(weights_bytes: int, routed_bytes: int, ep_size: int, attention_tp: int, gpus_per_node: int) -> float:
    """Return the bytes of weights that one node of a unit reads from storage.

    GPUs with the same part of attention read that part once, and every GPU reads its own experts. `weights_bytes`
    counts all weights of one GPU, `routed_bytes` its expert slots alone.
    """
    gpus = min(ep_size, gpus_per_node)
    parts = min(attention_tp, gpus)  # different parts of attention on the node
    return float((weights_bytes - routed_bytes) * parts + gpus * routed_bytes)


def pod_host_bytes(spec: Spec, phase: Phase, ranks_per_node: int) -> int | None:
    """Return the bytes of host memory that a pod of `phase` needs; None if its ranks keep no KV in host memory."""
    kept = spec.kv_cache.memory
    return None if kept is None or phase not in KEEPS_KV else ranks_per_node * (kept + PROCESS_BYTES)


def staging_bytes(spec: ResolvedSpec, layout: PhaseLayout) -> int | None:
    """Return the bytes that a rank needs while its unit changes its map in service; None if units restart instead."""
    if spec.written.engine_name != OURS or layout.ep_size == 1:
        return None
    model = spec.loaded_model
    return STAGED_EXPERTS * (weights_of(model, layout.precision).slot // model.num_moe_layers)


def _loaded_weights(spec: ResolvedSpec, model: Model, layout: PhaseLayout) -> Weights:
    """Return a GPU's weights as its engine has them in memory.

    The bundled runtime loads no encoders, and has the expansion of latent attention's KV once, in BF16. Other engines
    have the expansion twice, and vLLM pads experts in MXFP4.
    """
    weights = weights_of(model, layout.precision, layout.dense_tp)
    if spec.written.engine_name == OURS:
        return replace(weights, towers=0)
    weights = with_expansion(weights, model, layout.precision)
    return with_padding(weights, model, layout.precision) if spec.written.engine_name == "vllm" else weights


def _sparse_buffer(spec: ResolvedSpec, model: Model, section: PhaseSpec, kv_value: int) -> int:
    """Return the bytes of vLLM's buffer for prompts of sparse attention; 0 for other engines."""
    if spec.written.engine_name != "vllm":
        return 0
    return sparse_buffer_bytes(model, section.max_request_tokens, kv_value)

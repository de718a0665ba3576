"""The spec's `prefill`, `decode` and `mixed` sections: the layout and limits of a phase's units."""

from typing import Annotated

from pydantic import Field

from planner.facts.catalog import GPUS
from planner.facts.terms import AttentionPrecision, KvPrecision, Overlap, Precision
from planner.spec.cluster import A_GPU
from planner.spec.pods import Variables
from planner.spec.section import Options, Section, one_of
from planner.spec.undecided import AUTO, OR_AUTO

MAX_EP_SIZE = 4096
MAX_REDUNDANT = 16_384
MAX_ATTENTION_TP = 64
MAX_BATCH_TOKENS = 10_000_000
MAX_UNITS = 1000  # of a phase
MAX_DRAFTS = 8  # few drafts beyond the eighth are accepted


class PhaseSpec(Section):
    """The units of one phase, all alike. Numbers that are `auto` are decided by memory and shapes, or by speed."""

    units: Annotated[int, Field(ge=1, le=MAX_UNITS), *OR_AUTO] = Field(
        default=1,
        description=(
            "Number of units of the phase. With auto, as many as the cluster holds or, if schedule.windows is auto, as"
            " the traffic needs."
        ),
        examples=[1, AUTO],
    )
    gpu: Annotated[str, one_of(GPUS)] | None = Field(
        default=None,
        description="The catalog's GPU for the phase, by default cluster.gpu. Another GPU needs a list of nodes that"
        " says which have it.",
        examples=[A_GPU],
    )
    ep_size: Annotated[int, Field(ge=1, le=MAX_EP_SIZE), *OR_AUTO] = Field(
        description="Number of GPUs in a unit. Routed experts are spread over all of them.",
        examples=[32, AUTO],
    )
    attention_tp: Annotated[int, Field(ge=1, le=MAX_ATTENTION_TP), *OR_AUTO] = Field(
        default=1,
        description="Number of GPUs that split a request's attention by heads, on one node or several. With 1, each GPU"
        " has its own requests (dp_size is ep_size / attention_tp).",
        examples=[4, AUTO],
    )
    redundant_experts: Annotated[int, Field(ge=0, le=MAX_REDUNDANT), *OR_AUTO] = Field(
        default=0,
        description="Slots for further replicas of hot experts, beyond one slot for each expert.",
        examples=[32, AUTO],
    )
    overlap: Overlap = Field(
        default="none",
        description="How communication is hidden behind compute: two micro-batches (prefill) or five stages (decode).",
        examples=["dual_batch"],
    )
    precision: Precision = Field(
        default="bf16",
        description="Precision of weights, matmuls and dispatch. By default the checkpoint's: from its config's"
        " quantization_config, the hf_quant_config.json beside it, or the catalog. fp4 is NVFP4. mxfp4 and w4a16"
        " have routed experts in MXFP4 or INT4 and the rest in BF16; fp8_fp4, fp8_mxfp4 and w4a8 have the rest in"
        " FP8. These dispatch in BF16. Modules that the checkpoint's files exclude count with their own format.",
        examples=["fp8"],
    )
    kv_precision: KvPrecision | None = Field(
        default=None,
        description="Precision of KV in memory and in transfers to decode; by default bf16, or fp32 with precision"
        " fp32.",
        examples=["fp8"],
    )
    attention_precision: AttentionPrecision | None = Field(
        default=None,
        description="Precision of core attention, the products of queries with keys and of weights with values; by"
        " default as the engine's own choice of kernels has it. fp8 needs kv_precision fp8, and another engine's"
        " kernels: these are then chosen by option.",
        examples=["fp8"],
    )
    max_requests: Annotated[int, Field(ge=1, le=65_536), *OR_AUTO] = Field(
        default=32,
        description="Number of requests that one rank, or one attention group, runs at once.",
        examples=[32, AUTO],
    )
    max_request_tokens: int = Field(
        default=2048,
        ge=2,
        le=10_000_000,
        description="Most tokens of one request, prompt and output together.",
        examples=[2048],
    )
    max_batch_tokens: Annotated[int, Field(ge=1, le=MAX_BATCH_TOKENS), *OR_AUTO] = Field(
        default=4096,
        description="Prompt tokens that one rank computes in one step. A longer prompt takes several steps (chunked"
        " prefill). No effect in decode.",
        examples=[4096, AUTO],
    )
    draft_tokens: int = Field(
        default=0,
        ge=0,
        le=MAX_DRAFTS,
        description="Tokens that the model's MTP module drafts for each request in a step, for the next step to verify."
        " With drafts, prefill computes the module's KV too.",
        examples=[1],
    )
    max_kv_tokens: int | None = Field(
        default=None,
        ge=2,
        le=2**40,
        description="Most tokens of KV on one rank, in whole pages of 64. By default as many as memory holds, or on"
        " `cpu` as many as max_requests of full length need.",
        examples=[16_384],
    )
    engine_args: Options = Field(
        default={},
        description="Further options of another engine's servers in this phase, added to engine.args.",
        examples=[{"attention-backend": "flashinfer"}],
    )
    env: Variables = Field(
        default={},
        description="Further environment variables of the phase's pods, beside kubernetes.env, which they override.",
        examples=[{"NCCL_DEBUG": "INFO"}],
    )

"""The spec's `operating_point`, the load at which the speed of phases is predicted, and its `slo`.

Counts are per GPU, or per group of GPUs that share attention.
"""

from typing import Annotated

from pydantic import Field

from planner.facts.quantities import quantity
from planner.spec.section import Section
from planner.spec.undecided import AUTO, OR_AUTO

MAX_REQUESTS = 65_536
MAX_TOKENS = 10_000_000
MAX_MS = 10_000_000

# 40 GiB/s, the peak of DeepSeek's own cache clients with one 400 Gb/s NIC each: github.com/deepseek-ai/3FS 11901ca7
# README.md, KVCache.
CACHE_READ_RATE = "42.9GB/s"

# The lower end of the acceptance of the second token in DeepSeek-V3's report, 85 % to 90 %: arXiv 2412.19437v2, 5.4.3.
ACCEPTANCE = 0.85


class DecodePointSpec(Section):
    """The load at which the speed of decode is predicted."""

    requests: Annotated[int, Field(ge=1, le=MAX_REQUESTS), *OR_AUTO] = Field(
        default=AUTO,
        validate_default=True,
        description="Requests that one rank or attention group runs at a time. With auto, as many as max_requests"
        " allows and KV has room for.",
        examples=[88, AUTO],
    )
    kv_tokens: int = Field(
        ge=1, le=MAX_TOKENS, description="Mean KV tokens of a request while its output is generated.", examples=[4989]
    )


class PrefillPointSpec(Section):
    """The load at which the speed of prefill is predicted."""

    step_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS), *OR_AUTO] = Field(
        default=AUTO,
        validate_default=True,
        description="Prompt tokens that one rank computes in one step. With auto, max_batch_tokens.",
        examples=[16_384, AUTO],
    )
    prompt_tokens: int = Field(
        ge=1, le=MAX_TOKENS, description="Mean tokens of a prompt, those found in a cache included.", examples=[3000]
    )
    cache_hit_rate: float | None = Field(
        default=None,
        ge=0,
        le=0.999,
        description="Share of prompt tokens whose KV is read from a cache and not computed; only for specs without"
        " traffic.",
        examples=[0.563],
    )
    cache_read_rate: Annotated[float, *quantity("link")] | None = Field(
        default=None,
        description="Rate at which a node reads cached KV from its disks or other storage. By default kv_cache.disk's"
        f" bandwidth, or {CACHE_READ_RATE} without a disk, the most that one node read from DeepSeek's 3FS.",
        examples=["12GB/s"],
    )
    utilisation: float | None = Field(
        default=None,
        ge=0.01,
        le=1,
        description="Rate of units over their saturated rate. By default the highest that keeps slo.ttft_ms, but at"
        " least 0.5; 1 without slo.ttft_ms.",
        examples=[0.57],
    )


class MixedPointSpec(Section):
    """The load at which the speed of mixed units is predicted."""

    requests: Annotated[int, Field(ge=1, le=MAX_REQUESTS), *OR_AUTO] = Field(
        default=AUTO,
        validate_default=True,
        description="Requests that one rank or attention group runs at a time. With auto, as many as max_requests"
        " allows and KV has room for.",
        examples=[32, AUTO],
    )
    kv_tokens: int = Field(
        ge=1,
        le=MAX_TOKENS,
        description="Mean KV tokens of a request while its output is generated: the prompt and half of the answer."
        " Without traffic, the length of answers is derived from this number.",
        examples=[2500],
    )
    prompt_tokens: int = Field(ge=1, le=MAX_TOKENS, description="Mean tokens of a prompt.", examples=[2000])


class OperatingPointSpec(Section):
    """The load at which the speed of each phase is predicted. If left out, a phase's load follows from its limits."""

    prefill: PrefillPointSpec | None = Field(
        default=None,
        description="Operating point of prefill.",
        examples=[{"step_tokens": 16_384, "prompt_tokens": 3000}],
    )
    decode: DecodePointSpec | None = Field(
        default=None, description="Operating point of decode.", examples=[{"requests": 88, "kv_tokens": 4989}]
    )
    mixed: MixedPointSpec | None = Field(
        default=None,
        description="Operating point of mixed units.",
        examples=[{"requests": 32, "kv_tokens": 2500, "prompt_tokens": 2000}],
    )
    acceptance_rate: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Share of drafted tokens that are accepted, among those whose preceding drafts are accepted;"
        f" {ACCEPTANCE} unless given.",
        examples=[0.9],
    )


class SloSpec(Section):
    """Latencies that the service promises, with which predictions are compared."""

    ttft_ms: float | None = Field(
        default=None,
        ge=0.1,
        le=MAX_MS,
        description="Mean time to the first token, in milliseconds.",
        examples=[2000],
    )
    tpot_ms: float | None = Field(
        default=None, ge=0.1, le=MAX_MS, description="Mean time between two tokens, in milliseconds.", examples=[50]
    )

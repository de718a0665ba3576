"""The point at which a phase is predicted: how many requests, how long, how full."""

from dataclasses import dataclass

__all__ = ["OperatingPoint"]


@dataclass(frozen=True)
class OperatingPoint:
    """One phase's. Counts are of one GPU, or of a group that shares attention."""

    requests: float = 0.0  # that decode works on at a time
    kv_tokens: float = 0.0  # of each, on average
    step_tokens: float = 0.0  # of prompts, that prefill computes in a step
    prompt_tokens: float = 0.0  # of each prompt, on average
    output_tokens: float = 0.0  # of each answer, on average: only mixed units divide their time by it
    cache_hit_rate: float = 0.0  # share of prompts' tokens that are read and not computed
    utilisation: float = 1.0  # share of the saturated rate that is used
    is_derived: bool = False  # from the phase's limits, where the spec has none

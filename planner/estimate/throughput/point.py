"""The point at which a phase is predicted: how many requests, how long, how full."""

from dataclasses import dataclass
from math import ceil, fsum

from planner.estimate.throughput.queue import mean_wait, wait_at

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
    cache_read_gbps: float = 0.0  # at which a node reads them
    draft_tokens: int = 0  # that decode verifies for each request in a step; prefill's MTP module computes their KV
    acceptance_rate: float = 0.0  # of drafts that follow no wrong one
    utilisation: float = 1.0  # share of the saturated rate that is used
    is_derived: bool = False  # from the phase's limits, where the spec has none

    @property
    def step_queries(self) -> int:
        """Tokens that a step of decode computes for each request: its last one, and its drafts."""
        return 1 + self.draft_tokens

    @property
    def accepted_tokens(self) -> float:
        """Tokens that a step of decode gives each request, on average: one, and drafts up to the first wrong one.

        With a rate a and k drafts they are 1 + a + ... + a^k: 1.85 of DeepSeek-V3's one draft at 0.85.
        """
        return fsum(self.acceptance_rate**number for number in range(self.step_queries))

    @property
    def computed_tokens(self) -> float:
        """Tokens of a prompt that no cache has, on average."""
        return self.prompt_tokens * (1 - self.cache_hit_rate)

    @property
    def prompt_steps(self) -> int:
        """Steps of prefill that compute one prompt."""
        return max(1, ceil(self.computed_tokens / self.step_tokens))

    @property
    def queued_steps(self) -> float:
        """Steps that a prompt waits on average: none where a saturated phase has no mean."""
        return mean_wait(self.utilisation)

    def queued_steps_of(self, share: float) -> float:
        """Return the steps that such a share of all prompts waits for, or longer."""
        return wait_at(self.utilisation).of_share(share)

"""The operating point of a phase: its load, at which speed is predicted."""

from dataclasses import dataclass
from math import ceil, fsum

from planner.estimate.throughput.dimensions import Bytes, BytesPerSecond, Seconds, transfer_time
from planner.estimate.throughput.queue import mean_wait, wait_distribution
from planner.facts.quantities import BYTES_PER_GBIT

__all__ = ["OperatingPoint"]


@dataclass(frozen=True)
class OperatingPoint:
    """The load of one phase. Counts are per GPU, or per group of GPUs that share attention."""

    requests: float = 0.0  # in decode at a time
    kv_tokens: float = 0.0  # of each, on average
    step_tokens: float = 0.0  # prompt tokens that prefill computes in a step
    prompt_tokens: float = 0.0  # of each prompt, on average
    output_tokens: float = 0.0  # of each answer, on average; only used by mixed units
    cache_hit_rate: float = 0.0  # share of prompt tokens read from a cache
    cache_read_gbps: float = 0.0  # read rate of a node
    draft_tokens: int = (
        0  # verified per request in a decode step; in prefill, any number makes the MTP module compute its KV
    )
    acceptance_rate: float = 0.0  # of drafts that follow only right ones
    utilisation: float = 1.0  # share of the saturated rate that is used
    is_derived: bool = False  # from the phase's limits, because the spec gives no point

    @property
    def step_queries(self) -> int:
        """Return the tokens that a decode step computes per request: the last token and its drafts."""
        return 1 + self.draft_tokens

    @property
    def accepted_tokens(self) -> float:
        """Return the mean tokens that a decode step gives a request: one, plus drafts before a wrong one.

        With acceptance rate a and k drafts they are 1 + a + ... + a^k: 1.85 for DeepSeek-V3's one draft at 0.85.
        """
        return fsum(self.acceptance_rate**number for number in range(self.step_queries))

    @property
    def computed_tokens(self) -> float:
        """Return the mean tokens of a prompt that no cache has."""
        return self.prompt_tokens * (1 - self.cache_hit_rate)

    def cached_bytes(self, computed_tokens: float, kv_bytes_per_token: float) -> Bytes:
        """Return the bytes of cached KV that belong to so many computed tokens."""
        return Bytes(computed_tokens * self.cache_hit_rate / (1 - self.cache_hit_rate) * kv_bytes_per_token)

    def cache_read_time(self, computed_tokens: float, kv_bytes_per_token: float) -> Seconds:
        """Return the time in which a node reads the cached KV of so many computed tokens. Its ranks share one rate.

        Ranks read ahead while they compute, so a step takes the longer of the two times. A prompt waits for its own
        read before its first step.
        """
        num_bytes = self.cached_bytes(computed_tokens, kv_bytes_per_token)
        rate = BytesPerSecond(self.cache_read_gbps * BYTES_PER_GBIT)
        return transfer_time(num_bytes, rate) if num_bytes else Seconds(0.0)

    @property
    def prompt_steps(self) -> int:
        """Return the number of prefill steps that compute one prompt."""
        return max(1, ceil(self.computed_tokens / self.step_tokens))

    @property
    def queued_steps(self) -> float:
        """Return the mean steps that a prompt waits; 0 if saturated, because the mean is then infinite."""
        return mean_wait(self.utilisation)

    def queued_steps_exceeded_by(self, share: float) -> float:
        """Return the steps that `share` of all prompts wait for, or longer."""
        return wait_distribution(self.utilisation).wait_exceeded_by(share)

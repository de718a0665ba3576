"""Define the operating point of a phase: the load at which its speed is predicted."""

from dataclasses import dataclass
from math import ceil, fsum

from planner.estimate.throughput.dimensions import Bytes, BytesPerSecond, Seconds, transfer_time
from planner.estimate.throughput.queue import mean_wait, wait_distribution
from planner.facts.quantities import BYTES_PER_GBIT


@dataclass(frozen=True)
class OperatingPoint:
    """The load at which a phase's speed is predicted. Counts are per GPU, or per group of GPUs that share attention."""

    requests: float = 0.0  # that decode at the same time
    kv_tokens: float = 0.0  # of KV of each request, on average
    step_tokens: float = 0.0  # prompt tokens that prefill computes in a step
    prompt_tokens: float = 0.0  # of each prompt, on average
    output_tokens: float = 0.0  # of each answer, on average; only used by mixed units
    cache_hit_rate: float = 0.0  # share of prompt tokens read from a cache
    cache_read_gbps: float = 0.0  # read rate of a node
    draft_tokens: int = (
        0  # verified per request in a decode step; in prefill, any number makes the MTP module compute its KV
    )
    acceptance_rate: float = 0.0  # share of drafts that are right if all drafts before them are
    utilisation: float = 1.0  # share of the saturated rate that is used
    is_derived: bool = False  # whether it comes from the phase's limits, because the spec gives no operating point

    @property
    def step_queries(self) -> int:
        """Return how many tokens a decode step computes per request: the last token and its drafts."""
        return 1 + self.draft_tokens

    @property
    def accepted_tokens(self) -> float:
        """Return how many tokens a decode step gives a request on average: one, and drafts before the first wrong one.

        With acceptance rate a and k drafts that is 1 + a + ... + a^k: 1.85 for DeepSeek-V3's one draft at 0.85.
        """
        return fsum(self.acceptance_rate**number for number in range(self.step_queries))

    @property
    def computed_tokens(self) -> float:
        """Return how many tokens of a prompt prefill computes on average: the tokens that no cache has."""
        return self.prompt_tokens * (1 - self.cache_hit_rate)

    def cached_bytes(self, computed_tokens: float, kv_bytes_per_token: float) -> Bytes:
        """Return the bytes of cached KV that are read for prompts of which `computed_tokens` tokens are computed."""
        return Bytes(computed_tokens * self.cache_hit_rate / (1 - self.cache_hit_rate) * kv_bytes_per_token)

    def cache_read_time(self, computed_tokens: float, kv_bytes_per_token: float) -> Seconds:
        """Return the time in which a node reads the cached KV for prompts of which `computed_tokens` are computed.

        The ranks of a node share one rate. Ranks read ahead while they compute, so a step takes the longer of reading
        and computing. A prompt waits for the read of its own cached KV before its first step.
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
        """Return the mean number of steps that a prompt waits.

        Return 0 if prefill is saturated, since the mean is then infinite.
        """
        return mean_wait(self.utilisation)

    def queued_steps_exceeded_by(self, share: float) -> float:
        """Return the wait, in steps, that a `share` of all prompts reaches or exceeds; 0 if fewer prompts wait."""
        return wait_distribution(self.utilisation).wait_exceeded_by(share)

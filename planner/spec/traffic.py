"""The spec's `traffic` section: how many tokens a day has, and at which hours."""

from math import fsum
from typing import Annotated

from pydantic import Field

from planner.facts.terms import Phase
from planner.spec.section import Section

__all__ = ["HOURS", "TrafficSpec"]

HOURS = 24
HOUR_S = 3600
MAX_TOKENS = 1e18  # a day's, of any service


class TrafficSpec(Section):
    """The tokens of a day. Estimates read it: it changes nothing that is deployed."""

    input_tokens: float = Field(
        ge=1,
        le=MAX_TOKENS,
        description="Prompt tokens of a day, with those that a cache has.",
        examples=[608e9],
    )
    output_tokens: float = Field(
        ge=1, le=MAX_TOKENS, description="Tokens of a day that are produced.", examples=[168e9]
    )
    cache_hit_rate: float = Field(
        default=0.0,
        ge=0,
        le=0.999,
        description="Share of the prompt tokens whose KV a cache has, where the others are computed.",
        examples=[0.563],
    )
    profile: list[Annotated[float, Field(ge=0, le=MAX_TOKENS)]] | None = Field(
        default=None,
        min_length=HOURS,
        max_length=HOURS,
        description="Demand of each hour from midnight in the schedule's time zone, relative to the others (even unless"
        " given).",
        examples=[[2, 1, 1, 1, 1, 1, 2, 3, 5, 7, 8, 8, 8, 8, 8, 8, 8, 8, 7, 7, 6, 5, 4, 3]],
    )

    def tokens_of(self, phase: Phase) -> float:
        """Return a day's tokens that `phase` computes: of prompts without hits, else of output."""
        return self.input_tokens * (1 - self.cache_hit_rate) if phase == "prefill" else self.output_tokens

    def peak_per_s(self, phase: Phase) -> float:
        """Return the tokens/s that `phase` is asked for in the hour that has most."""
        profile = self.profile or [1.0] * HOURS
        return self.tokens_of(phase) * max(profile) / fsum(profile) / HOUR_S

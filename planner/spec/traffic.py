"""The spec's `traffic` section: how many tokens a day has, and at which hours."""

from typing import Annotated

from pydantic import Field

from planner.spec.section import Section

__all__ = ["HOURS", "TrafficSpec"]

HOURS = 24
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

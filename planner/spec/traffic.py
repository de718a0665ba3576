"""The spec's `traffic` section: the tokens of a day, and their profile over the day."""

from math import fsum
from typing import Annotated

from pydantic import Field

from planner.facts.calendar import entry_of
from planner.facts.day import DAY_MINUTES, DAY_S
from planner.facts.terms import Phase
from planner.spec.schedule import MAX_OTHER_DAYS, DayNames
from planner.spec.section import Section

HOURS = 24
MAX_TOKENS = 1e18  # a day's, of any service


Profile = Annotated[list[Annotated[float, Field(ge=0, le=MAX_TOKENS)]], Field(min_length=HOURS, max_length=DAY_MINUTES)]


class OtherDemandSpec(Section):
    """The demand of special days: weekdays and dates that differ from ordinary days."""

    days: DayNames
    profile: Profile = Field(
        description="Demand of each hour, or of each equal part of an hour, in the unit of traffic.profile."
        " A day with half the demand has half the tokens.",
        examples=[[1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3, 3, 2, 2, 1]],
    )


class TrafficSpec(Section):
    """The tokens and requests of a day, used for estimates. What is deployed depends on them only where it is auto."""

    input_tokens: float = Field(
        ge=1,
        le=MAX_TOKENS,
        description="Prompt tokens of a day, cached ones included.",
        examples=[608e9],
    )
    output_tokens: float = Field(ge=1, le=MAX_TOKENS, description="Output tokens of a day.", examples=[168e9])
    requests: float | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="Requests of a day. Their mean lengths are input_tokens / requests and output_tokens / requests."
        " Phases without an operating_point are predicted with these lengths or, by default, half of"
        " max_request_tokens.",
        examples=[50e6],
    )
    cache_hit_rate: float = Field(
        default=0.0,
        ge=0,
        le=0.999,
        description="Share of the prompt tokens whose KV comes from a cache. The others are computed.",
        examples=[0.563],
    )
    profile: Profile | None = Field(
        default=None,
        description="Relative demand of each hour from midnight in the schedule's time zone, by default constant; or"
        " of each half, quarter or other part of an hour in whole minutes.",
        examples=[[2, 1, 1, 1, 1, 1, 2, 3, 5, 7, 8, 8, 8, 8, 8, 8, 8, 8, 7, 7, 6, 5, 4, 3]],
    )

    other_days: list[OtherDemandSpec] = Field(
        default=[],
        max_length=MAX_OTHER_DAYS,
        description="Demand of special weekdays and dates; a date takes precedence over its weekday.",
        examples=[[{"days": ["saturday", "sunday"], "profile": [1] * HOURS}]],
    )
    trace: str | None = Field(
        default=None,
        min_length=1,
        description="File of requests with hash_ids, in the format of Mooncake's traces, relative to this spec. It"
        " shows how soon your users' prompts come again, and so the hit rate that kv_cache gives; by default"
        " Mooncake's conversations do.",
        examples=["conversations.jsonl"],
    )

    def tokens_of(self, phase: Phase) -> float:
        """Return the tokens that `phase` computes in a day: prompt tokens that miss the cache, or output tokens."""
        return self.input_tokens * (1 - self.cache_hit_rate) if phase == "prefill" else self.output_tokens

    def peak_per_s(self, phase: Phase) -> float:
        """Return the highest rate that traffic demands of `phase`, in tokens/s, over the profiles of all days."""
        profile = self.profile or [1.0] * HOURS
        return self.tokens_of(phase) * self.busiest / fsum(profile) / (DAY_S / len(profile))

    @property
    def busiest(self) -> float:
        """The highest entry over the profiles of all days, in the profile's unit."""
        return max(max(each) for each in (self.profile or [1.0], *(other.profile for other in self.other_days)))

    def profile_on(self, day: str | None) -> list[float] | None:
        """Return the profile of `day`; None if demand is constant on that day.

        `day` is a date or a weekday, or None for an ordinary day.
        """
        index = None if day is None else entry_of(day, [each.days for each in self.other_days])
        return self.profile if index is None else self.other_days[index].profile

    def day_scale(self, day: str | None) -> float:
        """Return the tokens of `day` over the tokens of an ordinary day.

        `day` is a date or a weekday, or None for an ordinary day.
        """
        profile, own = self.profile or [1.0], self.profile_on(day) or [1.0]
        return fsum(own) / len(own) / (fsum(profile) / len(profile))

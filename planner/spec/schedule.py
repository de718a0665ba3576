"""The spec's `schedule` section: which units are on at which time of day."""

from pydantic import Field

from planner.facts.terms import Phase
from planner.spec.section import Section

__all__ = ["ScheduleSpec", "WindowSpec"]


class WindowSpec(Section):
    """How many units are on from a time of day until the next window's."""

    at: str = Field(
        pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$",
        description="Time of day from which it applies, as HH:MM.",
        examples=["08:30"],
    )
    prefill_units: int | None = Field(
        default=None, ge=0, le=1000, description="Number of prefill units that are on.", examples=[29]
    )
    decode_units: int | None = Field(
        default=None, ge=0, le=1000, description="Number of decode units that are on.", examples=[9]
    )
    mixed_units: int | None = Field(
        default=None, ge=0, le=1000, description="Number of mixed units that are on.", examples=[2]
    )

    def num_units(self, phase: Phase) -> int:
        """Return the units of `phase`, or 0 where the deployment has no such phase."""
        return {"prefill": self.prefill_units, "decode": self.decode_units, "mixed": self.mixed_units}[phase] or 0


class ScheduleSpec(Section):
    """The day: which units are on when. The nodes of the others are free for other work."""

    timezone: str = Field(
        default="UTC", description="Time zone of the times, by its IANA name.", examples=["Asia/Shanghai"]
    )
    windows: list[WindowSpec] = Field(
        min_length=1,
        max_length=1440,
        description="Windows of the day. Each lasts until the next one starts, the last until the next day's first.",
        examples=[[{"at": "08:30", "prefill_units": 29, "decode_units": 9}]],
    )

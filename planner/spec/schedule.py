"""The spec's `schedule` section: which units are on at which time of day."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from planner.facts.quantities import quantity
from planner.facts.terms import Phase
from planner.spec.section import Section
from planner.spec.undecided import AUTO, OR_AUTO

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
    """The day: which units are on when. The nodes of the others are free for other work. The word auto is short for
    windows that are auto."""

    timezone: str = Field(
        default="UTC", description="Time zone of the times, by its IANA name.", examples=["Asia/Shanghai"]
    )
    windows: Annotated[list[WindowSpec], Field(min_length=1, max_length=1440), *OR_AUTO] = Field(
        description="Windows of the day. Each lasts until the next one starts, the last until the next day's first."
        " With auto, those that carry traffic.profile with the fewest node-hours, where each phase's units just carry"
        " the busiest hour.",
        examples=[[{"at": "08:30", "prefill_units": 29, "decode_units": 9}], "auto"],
    )
    warm_up: Annotated[float, *quantity("time", least="1s", most="6h")] = Field(
        default="10min",
        validate_default=True,
        description="Time that a unit has its nodes before it serves, while it reads weights, joins and captures"
        " graphs.",
        examples=["10min"],
    )
    drain: Annotated[float, *quantity("time", least="1s", most="6h")] = Field(
        default="5min",
        validate_default=True,
        description="Time that a unit keeps its nodes after its window, until its last request is answered.",
        examples=["5min"],
    )
    min_stay: Annotated[float, *quantity("time", least="15min", most="24h")] = Field(
        default="15min",
        validate_default=True,
        description="Time that a phase keeps a number of units at least, where windows are auto.",
        examples=["15min"],
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, written: Any) -> Any:
        return {"windows": AUTO} if written == AUTO else written

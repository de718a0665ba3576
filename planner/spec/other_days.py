"""The type of `days` in entries of `traffic.other_days` and `schedule.other_days`."""

from typing import Annotated

from pydantic import Field

MAX_OTHER_DAYS = 366

DayNames = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=10)]],
    Field(
        min_length=1,
        max_length=MAX_OTHER_DAYS,
        description="Weekdays, and dates as 2026-12-24, in the schedule's time zone.",
        examples=[["saturday", "sunday", "2026-12-24"]],
    ),
]

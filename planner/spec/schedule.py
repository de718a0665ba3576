"""The spec's `schedule` section: which units are on at which time of day, and how long a start of units takes.

Sources of the defaults of `schedule.start`:
    pods             assumed: images are on the nodes, and processes import and initialise their GPU
    storage          assumed: ten storage nodes of 40 GB/s, as the 180 of 3FS read 6.6 TiB/s together
                     (github.com/deepseek-ai/3FS 11901ca7 README.md, peak throughput)
    join             assumed: rendezvous, communicators and buffers of a group of 144
    graphs           github.com/vllm-project/vllm issue 19824: CUDA graphs of a 70B model on 8 GPUs in about 60 s
    notice           assumed: a training job writes a checkpoint and ends

`kubernetes.load_rate` is the rate at which one node reads weights.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from planner.facts.calendar import entry_of, week_around
from planner.facts.day import DAY_MINUTES, minute_of
from planner.facts.quantities import quantity
from planner.facts.terms import Phase
from planner.spec.phase import MAX_UNITS
from planner.spec.section import Section, quantity_field
from planner.spec.undecided import AUTO, OR_AUTO

MAX_OTHER_DAYS = 366

Seconds = Annotated[float, *quantity("time", least="1ms", most="6h")]
GbPerS = Annotated[float, *quantity("link")]
DayNames = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=10)]],
    Field(
        min_length=1,
        max_length=MAX_OTHER_DAYS,
        description="Weekdays, and dates as 2026-12-24, in the schedule's time zone.",
        examples=[["saturday", "sunday", "2026-12-24"]],
    ),
]


class WindowSpec(Section):
    """The number of units of each phase that are on from a time of day until the next window."""

    at: str = Field(
        pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$",
        description="Time of day from which the window applies, as HH:MM.",
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
        """Return the number of units of `phase` that are on; 0 if the window gives none."""
        return {"prefill": self.prefill_units, "decode": self.decode_units, "mixed": self.mixed_units}[phase] or 0


class UnitCounts(Section):
    """A number of units for each phase, 1 where none is given."""

    prefill: int | None = Field(
        default=None, ge=1, le=MAX_UNITS, description="Number of prefill units (1 unless given).", examples=[8]
    )
    decode: int | None = Field(
        default=None, ge=1, le=MAX_UNITS, description="Number of decode units (1 unless given).", examples=[2]
    )
    mixed: int | None = Field(
        default=None, ge=1, le=MAX_UNITS, description="Number of mixed units (1 unless given).", examples=[1]
    )

    def of(self, phase: Phase) -> int:
        """Return the number of units of `phase`; 1 if it is not given."""
        return {"prefill": self.prefill, "decode": self.decode, "mixed": self.mixed}[phase] or 1


class OtherWindowsSpec(Section):
    """The windows of special days: weekdays and dates that differ from ordinary days."""

    days: DayNames
    windows: list[WindowSpec] = Field(
        min_length=1,
        max_length=1440,
        description="Windows of these days, from midnight to midnight. Before the first window, the units of the"
        " last one are on.",
        examples=[[{"at": "09:00", "prefill_units": 8, "decode_units": 2}]],
    )


class StartSpec(Section):
    """The times of a start of units, stage by stage, and the bandwidth at which all starting units read weights."""

    pods: Seconds = quantity_field("30s", "Time until pods are placed and their processes run.")
    storage: GbPerS = quantity_field(
        "400GB/s", "Bandwidth of the storage, shared by all nodes that read weights at once."
    )
    join: Seconds = quantity_field("30s", "Time until all ranks of a unit have joined each other.")
    graphs: Seconds = quantity_field("60s", "Time to capture CUDA graphs; none on CPUs.")
    notice: Seconds = quantity_field("5min", "Notice before a start, for other work to leave the nodes.")


class ScheduleSpec(Section):
    """The units that are on at each time of day. The nodes of all others are free for other work. `schedule: auto` is
    short for `windows: auto`."""

    timezone: str = Field(
        default="UTC", description="Time zone of the times, by its IANA name.", examples=["Asia/Shanghai"]
    )
    windows: Annotated[list[WindowSpec], Field(min_length=1, max_length=1440), *OR_AUTO] = Field(
        description="Windows of the day. Each lasts until the next one starts, the last until the next day's first."
        " With auto, the windows that serve traffic.profile with the fewest node-hours, assuming that all units of a"
        " phase just serve the busiest hour.",
        examples=[[{"at": "08:30", "prefill_units": 29, "decode_units": 9}], "auto"],
    )
    other_days: list[OtherWindowsSpec] = Field(
        default=[],
        max_length=MAX_OTHER_DAYS,
        description="Windows of special weekdays and dates; a date takes precedence over its weekday. If windows is"
        " auto, they follow traffic.other_days.",
        examples=[
            [{"days": ["saturday", "sunday"], "windows": [{"at": "00:00", "prefill_units": 8, "decode_units": 2}]}]
        ],
    )
    warm_up: Annotated[float, *quantity("time", least="1s", most="6h")] = Field(
        default="10min",
        validate_default=True,
        description="Time for which a unit has its nodes before it serves, to read weights, join and capture graphs.",
        examples=["10min"],
    )
    start: StartSpec = Field(
        default=StartSpec(),
        description="Times of a start, stage by stage.",
        examples=[{"storage": "400GB/s"}],
    )
    drain: Annotated[float, *quantity("time", least="1s", most="6h")] = Field(
        default="5min",
        validate_default=True,
        description="Time for which a unit keeps its nodes after its window, until its last request is answered.",
        examples=["5min"],
    )
    headroom: float = Field(
        default=0.0,
        ge=0,
        le=4,
        description="Capacity beyond the demand, as a share of the demand, if windows is auto.",
        examples=[0.1],
    )
    min_units: UnitCounts = Field(
        default=UnitCounts(),
        description="Fewest units that are on at any time, if windows is auto.",
        examples=[{"prefill": 8, "decode": 2}],
    )

    @property
    def all_windows(self) -> list[WindowSpec]:
        """The windows of ordinary and of special days."""
        return [*self.windows, *(window for other in self.other_days for window in other.windows)]

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, written: Any) -> Any:
        return {"windows": AUTO} if written == AUTO else written


ALL_DAY = ScheduleSpec(windows=[WindowSpec(at="00:00")])  # without a schedule: every unit is on


def weeks_of(schedule: ScheduleSpec) -> Iterator[tuple[Sequence[WindowSpec], ...]]:
    """Yield sequences of days that repeat: ordinary days alone, and the week around each special day.

    A sequence has the windows of each of its days.
    """
    yield (schedule.windows,)
    others = [other.days for other in schedule.other_days]
    for day in (day for days in others for day in days):
        entries = (entry_of(each, others) for each in week_around(day))
        yield tuple(schedule.windows if entry is None else schedule.other_days[entry].windows for entry in entries)


def active_minutes(schedule: ScheduleSpec | None, phase: Phase, index: int) -> int:
    """Return how many minutes of an ordinary day unit number `index` of `phase` is on."""
    if schedule is None:
        return DAY_MINUTES
    lengths = zip(schedule.windows, window_minutes(schedule), strict=True)
    return sum(length for window, length in lengths if index < window.num_units(phase))


def window_minutes(schedule: ScheduleSpec) -> list[int]:
    """Return how many minutes each window of an ordinary day lasts, in the order of the spec.

    A rule ensures that no two windows start at the same time.
    """
    starts = window_starts(schedule)
    ordered = sorted(starts)
    following = dict(zip(ordered, [*ordered[1:], ordered[0] + DAY_MINUTES], strict=True))
    return [following[start] - start for start in starts]


def window_starts(schedule: ScheduleSpec) -> list[int]:
    """Return the minute of the day at which each window starts, `[windows]`, in the order of the spec."""
    return [minute_of(window.at) for window in schedule.windows]

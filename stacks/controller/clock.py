"""The clock of a controller: wall-clock time, or the faster time of a rehearsal.

A rehearsal begins when the TidemillDeployment was created. So a controller that is started again goes on in the same
day at the same time, and keeps nothing for it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

__all__ = ["Clock", "timestamp"]

YEAR_9999 = 253_370_764_800.0  # 9999-01-01: Python's dates end with that year, and a look computes days ahead


@dataclass(frozen=True)
class Clock:
    """Converts between wall-clock time and the day's time, which is `pace` times as fast.

    Both are in seconds since 1970-01-01 00:00 UTC.
    """

    began: float
    pace: float

    def day_time(self, real: float) -> float:
        """Return the day's time at the wall-clock time `real`."""
        return self.began + (real - self.began) * self.pace

    def world_time(self, day_time: float) -> float:
        """Return the wall-clock time at which the day's time is `day_time`."""
        return self.began + (day_time - self.began) / self.pace

    def has_date(self, real: float) -> bool:
        """Return whether the day's time at `real` is before the year 9999, which a fast clock passes within weeks."""
        return 0 <= self.day_time(real) < YEAR_9999


def timestamp(instant: float) -> str:
    """Return an instant as Kubernetes writes it: `2026-11-24T06:00:00Z`."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

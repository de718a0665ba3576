"""The clock of a controller: the real time, or that of a rehearsal, which runs faster.

A rehearsal begins when the TidemillDeployment was created. So a controller that is started again goes on in the same
day at the same time, and keeps nothing for it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

__all__ = ["Clock", "parse_instant", "timestamp"]

YEAR_9999 = 253_370_764_800.0  # the last one that dates have; a look goes on from now for days, so it ends before


@dataclass(frozen=True)
class Clock:
    """Converts the day's time and the world's into each other; both are seconds since 1970-01-01 00:00 UTC."""

    began: float
    pace: float

    def day_time(self, real: float) -> float:
        """Return the day's time at a real time."""
        return self.began + (real - self.began) * self.pace

    def world_time(self, day_time: float) -> float:
        """Return the real time at a time of the day."""
        return self.began + (day_time - self.began) / self.pace

    def has_date(self, real: float) -> bool:
        """Return whether the day's time is before the year 9999: a fast clock passes it within weeks."""
        return 0 <= self.day_time(real) < YEAR_9999


def timestamp(instant: float) -> str:
    """Return an instant as Kubernetes writes it: `2026-11-24T06:00:00Z`."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_instant(written: str) -> float | None:
    """Return the instant that a field of an object holds; None if it is no time.

    The server's schema admits more forms of time than Python reads, the 31st of November among them, and small letters.
    """
    try:
        return datetime.fromisoformat(written.upper()).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        return None

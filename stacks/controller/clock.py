"""The time of day that a controller goes by: the world's, or a rehearsal's, which goes faster.

A rehearsal begins when the TidemillDeployment was created. So a controller that is started again goes on in the same
day at the same time, and keeps nothing for it.
"""

from dataclasses import dataclass

__all__ = ["Clock"]


@dataclass(frozen=True)
class Clock:
    """Seconds since 1970-01-01 00:00 UTC, there and here."""

    began: float
    pace: float

    def of(self, real: float) -> float:
        """Return the day's time at a time of the world."""
        return self.began + (real - self.began) * self.pace

    def real(self, of_day: float) -> float:
        """Return the world's time at a time of the day."""
        return self.began + (of_day - self.began) / self.pace

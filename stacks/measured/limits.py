"""The limits within which units change their expert maps by themselves: the spec's `expert_load.live`."""

from dataclasses import dataclass

from planner.spec.schema import LiveMapsSpec

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """How often a unit's map may change, what that gains at least, and what it moves at most."""

    every_s: float
    min_gain: float
    max_bytes: int

    @classmethod
    def of(cls, written: LiveMapsSpec) -> "Limits":
        """Return the limits in a spec."""
        return cls(written.every, written.min_gain, written.max_bytes)

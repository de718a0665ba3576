"""The limits within which units change their expert maps by themselves: the spec's `expert_load.live`."""

from dataclasses import dataclass

from planner.spec.schema import LiveMapsSpec

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """The limits on live changes of a unit's map: how often it may change, the least gain, and the most bytes moved."""

    every_s: float
    min_gain: float
    max_bytes: int

    @classmethod
    def of(cls, written: LiveMapsSpec) -> "Limits":
        """Return the limits that the spec has `written`."""
        return cls(written.every, written.min_gain, written.max_bytes)

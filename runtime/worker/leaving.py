"""The end of a unit without a dropped request: it gets no new ones, answers those it has, and its ranks end.

    SIGTERM at a rank -> State "draining" -> the gateway sends the whole unit no more requests -> the unit is idle ->
    every rank says that it is draining -> Dismissed by each gateway that waits for nothing from it -> all end together

If one rank is told to leave, its whole unit leaves, because a unit cannot compute without one of its ranks. The node
limits how long this may take (`node.py`).
"""

from typing import Protocol

__all__ = ["Leaving", "RankNetwork"]


class RankNetwork(Protocol):
    """The part of a rank's network that leaving needs."""

    def say_draining(self) -> None:
        """Report to the gateways that this rank takes no new requests."""

    def is_dismissed(self) -> bool:
        """Return whether no connected gateway waits for an answer from this rank."""

    def is_handing_over(self) -> bool:
        """Return whether a prompt's KV is on its way to a decode rank."""


class Leaving:
    """One rank's part in the orderly end of its unit."""

    def __init__(self, network: RankNetwork) -> None:
        self._network = network
        self._is_told = False
        self.has_begun = False

    def begin(self) -> None:
        """Let the rank begin to leave at the next turn of the step loop. Safe in a signal handler."""
        self.has_begun = True

    def tell_gateways(self) -> None:
        """Report once to the gateways that this rank is draining."""
        if not self._is_told:
            self._is_told = True
            self._network.say_draining()

    @property
    def is_free(self) -> bool:
        """True if an idle rank may end: no request is on its way to or from it."""
        return self._network.is_dismissed() and not self._network.is_handing_over()

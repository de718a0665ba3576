"""The errors of the runtime that are not bugs: each is one sentence that a user can act on.

RuntimeFailure             exit 1: something failed while running
|-- CheckpointError        the checkpoint cannot be read, or is not what it says
|-- LaunchError            the launch file is refused: version, digest, shape
|-- WireError              a peer broke the protocol, or closed the connection
|   `-- WireVersionError   a peer speaks another version of the protocol
|-- EpochError             the document of an epoch is refused: another unit's, not the next, torn or changed
|-- StagingError           an expert in staging or in a slot is not what the unit has loaded
|-- RequestFailure         one request cannot be answered; the others go on
|-- PeerLost               a rank of this unit is gone, so the unit cannot go on
`-- UsageError             exit 2: the call itself is wrong

Anything else that escapes is a bug, and may show its traceback.
"""

__all__ = [
    "CheckpointError",
    "EpochError",
    "LaunchError",
    "PeerLost",
    "RequestFailure",
    "RuntimeFailure",
    "StagingError",
    "UsageError",
    "WireError",
    "WireVersionError",
]


class RuntimeFailure(Exception):
    """A failure at run time. `str()` is the one sentence to print."""

    def __str__(self) -> str:
        """Escape invisible characters, because a file or a peer may have chosen some of the words."""
        return "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in super().__str__()
        )


class CheckpointError(RuntimeFailure):
    """The checkpoint is missing or truncated, or does not fit its config."""


class LaunchError(RuntimeFailure):
    """The launch file has another version, was edited, or does not fit the checkpoint."""


class EpochError(RuntimeFailure):
    """The document of an epoch is not for this unit, does not follow the unit's epoch, or is torn or changed."""


class StagingError(RuntimeFailure):
    """An expert in staging or in a slot is not what the unit has loaded."""


class WireError(RuntimeFailure):
    """A frame broke the protocol, or the connection closed inside one."""


class WireVersionError(WireError):
    """The peer is of another version of Tidemill, older or newer."""


class RequestFailure(RuntimeFailure):
    """One request cannot be answered. The rank reports it, and goes on with other requests."""


class PeerLost(RuntimeFailure):
    """A rank of the unit is gone while the others still need it."""


class UsageError(RuntimeFailure):
    """The command was called wrongly."""

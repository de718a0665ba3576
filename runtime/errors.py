"""The errors of the runtime that are not bugs: each is one sentence that a user can act on.

RuntimeFailure             exit 1: something failed while running
|-- CheckpointError        the checkpoint cannot be read, or is not what it says
|-- LaunchError            the launch file is refused: version, digest, shape
|-- WireError              a peer sent what the protocol does not allow, or went away
|   `-- WireVersionError   a peer speaks another version of the protocol
|-- RequestFailure         one request cannot be answered; the others go on
|-- PeerLost               a rank of this unit is gone, so the unit cannot go on
`-- UsageError             exit 2: the call itself is wrong

Anything else that escapes is a bug, and may show its traceback.
"""

__all__ = [
    "CheckpointError",
    "LaunchError",
    "PeerLost",
    "RequestFailure",
    "RuntimeFailure",
    "UsageError",
    "WireError",
    "WireVersionError",
]


class RuntimeFailure(Exception):
    """Failed at run time; `str()` is the one sentence to print."""

    def __str__(self) -> str:
        """Escape invisible characters: a file or a peer may have chosen some of the words."""
        return "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in super().__str__()
        )


class CheckpointError(RuntimeFailure):
    """The checkpoint is missing, truncated, or of another shape than its config says."""


class LaunchError(RuntimeFailure):
    """The launch file is of another version, was edited, or does not fit the checkpoint."""


class WireError(RuntimeFailure):
    """A frame broke the protocol, or the connection closed inside one."""


class WireVersionError(WireError):
    """The peer is of another version of Tidemill, older or newer."""


class RequestFailure(RuntimeFailure):
    """One request cannot be answered. Its server tells the sender, and goes on with the others."""


class PeerLost(RuntimeFailure):
    """A rank of the unit left while the others still needed it."""


class UsageError(RuntimeFailure):
    """The command was called with something that it cannot work on."""

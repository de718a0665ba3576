"""The errors of calls that several gitops commands have in common."""

from planner.problems.errors import CallError
from planner.problems.finding import Finding

__all__ = ["INIT", "PROPOSE", "link_refused", "refused"]

INIT, PROPOSE = "tidemill gitops init", "tidemill gitops propose"


def refused(place: str, path: str, value: str | None, rule: str, reason: str, fix: str) -> CallError:
    """Return the error for an argument of the command, or for the file, that `place` names."""
    return CallError([Finding(path, value, rule, reason, fix).at(place)])


def link_refused(path: str) -> CallError:
    """Return the error for a link where a folder or file of the checkout has to be."""
    rule, reason = "R608 must not be a link", "what it leads to may belong to somebody else"
    return refused(path, "", None, rule, reason, "put a folder or file in its place")

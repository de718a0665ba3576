"""The error of a deployment on this machine: exit status 1, and one line with what, why and what to do."""

from planner.problems.errors import TidemillError
from planner.problems.finding import Finding

__all__ = ["LocalError"]


class LocalError(TidemillError):
    """A deployment on this machine cannot be started, stopped or found.

    `rule` starts with the id of a rule, such as `R101`.
    """

    exit_status = 1

    def __init__(self, rule: str, reason: str, fix: str) -> None:
        super().__init__([Finding("", None, rule, reason, fix).at("tidemill")])

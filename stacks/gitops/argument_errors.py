"""Errors about arguments that several gitops commands share."""

from planner.problems.errors import CallError
from planner.problems.finding import Finding

__all__ = ["INIT", "PROPOSE", "argument_error", "link_error", "loads_error", "no_loads_file_error"]

INIT, PROPOSE = "tidemill gitops init", "tidemill gitops propose"


def argument_error(command: str, argument: str, value: str | None, rule: str, reason: str, fix: str) -> CallError:
    """Return an error about `argument` (such as `--base`), given as `value` to `command`.

    For an error about a whole file, `command` is the file and `argument` is empty.
    """
    return CallError([Finding(argument, value, rule, reason, fix).at(command)])


def link_error(path: str) -> CallError:
    """Return the error for a link in place of a folder or file of the checkout."""
    rule, reason = "R608 must not be a link", "what it leads to may belong to somebody else"
    return argument_error(path, "", None, rule, reason, "put a folder or file in its place")


def loads_error(command: str, option: str, value: str | None, reason: str, fix: str) -> CallError:
    """Return the error about an `option` of `command` whose `value` is no file of loads for `expert_load.file`."""
    rule = "R615 must be a file of loads, to replace the spec's expert_load.file"
    return argument_error(command, option, value, rule, reason, fix)


def no_loads_file_error(command: str, option: str) -> CallError:
    """Return the error for a spec that names no loads file: new loads would have nothing to replace."""
    fix = "write expert_load: {file: loads.json}, and commit such a file"
    return loads_error(command, option, None, "the spec has none", fix)

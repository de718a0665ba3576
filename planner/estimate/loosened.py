"""What a patch of the spec takes away of the security that pods are rendered with.

Pods run as a user without rights, with no capability, and see nothing of their node but what a field of the spec names.
A patch may undo any of it, since some site will need it. It should not go unseen in a review of the spec, so that each
field that loosens something is a warning.

Source: github.com/kubernetes/kubernetes 003effe9 staging/src/k8s.io/pod-security-admission/policy: the fields that the
baseline and the restricted standard forbid, as its check_*.go files name them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from planner.facts.names import SECURITY_LABEL
from planner.problems.errors import Violation
from planner.problems.fix import removal
from planner.spec.pods import PatchSpec

__all__ = ["loosened_by"]

Path = tuple[str, ...]


def loosened_by(patches: Sequence[PatchSpec]) -> Iterator[Violation]:
    """Warn of each field of `patches` that takes away security of pods, by its path in the spec."""
    for index, each in enumerate(patches):
        for path, value, reason in _loosened(each.patch, ()):
            where = ".".join(["kubernetes.patches", str(index), "patch", *path])
            yield Violation(where, value, "W108 loosens the security of pods", reason, removal())


def _loosened(value: Any, path: Path) -> Iterator[tuple[Path, Any, str]]:
    """Each field at or below `path` that loosens something: its path, its value, and what that gives away."""
    is_loose, reason = LOOSENING.get(path[-1] if path else "", (None, ""))
    if is_loose is not None and is_loose(value):
        yield path, value, reason
    elif isinstance(value, dict | list):
        below = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in below:
            yield from _loosened(inner, (*path, str(key)))


def _is_true(value: Any) -> bool:
    return value is True


def _is_not_true(value: Any) -> bool:
    return value is not True


def _is_not_false(value: Any) -> bool:
    return value is not False


def _is_there(value: Any) -> bool:
    return value not in (None, [])


def _is_nothing(value: Any) -> bool:
    return value is None


def _is_root(value: Any) -> bool:
    return bool(value == 0)


def _adds_or_keeps(value: Any) -> bool:
    """Of capabilities: some are added, or not all are dropped."""
    if not isinstance(value, dict):
        return True
    return bool(value.get("add")) or ("drop" in value and "ALL" not in (value["drop"] or ()))


def _is_unconfined(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and value.get("type", "Unconfined") == "Unconfined")


def _is_looser_standard(value: Any) -> bool:
    return bool(value != "restricted")


# Field, wherever it stands in a patch -> whether its value loosens something, and what is then given away.
LOOSENING: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "privileged": (_is_true, "a privileged container has all rights of its node"),
    "allowPrivilegeEscalation": (_is_not_false, "a process may then get more rights than it was started with"),
    "capabilities": (_adds_or_keeps, "a capability is a part of root's rights"),
    "readOnlyRootFilesystem": (_is_not_true, "a program may then change the files of its image"),
    "runAsNonRoot": (_is_not_true, "nothing then keeps the container from running as root"),
    "runAsUser": (_is_root, "who breaks out of the container is root on the node"),
    "securityContext": (_is_nothing, "without it pods run as the image says, with a runtime's capabilities"),
    "seccompProfile": (_is_unconfined, "every system call is then allowed"),
    "appArmorProfile": (_is_unconfined, "every system call is then allowed"),
    "procMount": (_is_there, "what the kernel shows of the node is then not hidden"),
    "hostNetwork": (
        _is_true,
        "the pod then reaches all that its node reaches; kubernetes.host_network says it for units",
    ),
    "hostPID": (_is_true, "the pod then sees and may end the processes of its node"),
    "hostIPC": (_is_true, "the pod then shares memory with the processes of its node"),
    "hostPath": (
        _is_there,
        "the pod then has a folder of its node, and may write there unless it is mounted read-only",
    ),
    "hostPort": (_is_there, "the port is then open on the node, past network policies"),
    "automountServiceAccountToken": (_is_not_false, "the container then has a token of the cluster's API"),
    SECURITY_LABEL: (_is_looser_standard, "the namespace then admits such pods of anybody"),
}

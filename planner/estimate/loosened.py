"""Warn of patches of the spec that loosen the security which pods are rendered with.

Pods run as a user without rights, with no capability, and see nothing of their node but what a field of the spec names.
A patch may undo any of it, since some site will need it. It should not go unseen in a review of the spec, so each field
of the tables below is a warning where its value loosens something. A field that is in neither table is not looked at.

Source: github.com/kubernetes/kubernetes 003effe9 staging/src/k8s.io/pod-security-admission/policy: the fields that the
baseline and the restricted standard forbid, as its check_*.go files name them. A few are ours, such as the
account, the image and the commands of containers, probes and lifecycles: they change whose rights a pod has, and which
program.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from planner.facts import names
from planner.problems.errors import Violation
from planner.problems.fix import Fix, removal
from planner.spec.pods import PatchSpec

__all__ = ["loosened_by"]

Path = tuple[str, ...]
Loose = tuple[Path, Any, str, Fix | str]  # a field, its value, what that gives away, and what to do
Entry = tuple[Callable[[Any], bool], str]


def loosened_by(patches: Sequence[PatchSpec]) -> Iterator[Violation]:
    """Warn of each field of `patches` that takes away security of pods, by its path in the spec."""
    for index, each in enumerate(patches):
        for path, value, reason, fix in _loosened(each.patch, ()):
            where = ".".join(["kubernetes.patches", str(index), "patch", *path])
            shown = None if path[-1] in COMMANDS else value
            yield Violation(where, shown, "W108 loosens the security of pods", reason, fix)


def _loosened(value: Any, path: Path) -> Iterator[Loose]:
    """Yield each field at or below `path` that loosens something."""
    is_loose, reason = _entry(path[-1] if path else "")
    if is_loose(value):
        yield path, value, reason, removal()
    elif isinstance(value, dict | list):
        if path[-2:-1] in CONTAINERS and isinstance(value, dict):
            yield from _container(value, path)
        below = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in below:
            yield from _loosened(inner, (*path, str(key)))


def _entry(field: str) -> Entry:
    """Return the entry of `field`, or of its prefix where all names with that prefix have one."""
    prefix = "".join(field.partition("/")[:2])
    return LOOSENING.get(field) or LOOSENING.get(prefix) or (_is_never, "")


def _container(container: Mapping[str, Any], path: Path) -> Iterator[Loose]:
    """Yield what another program in a container of the plan, or a further container without limits, gives away."""
    if container.get("name") in names.POD_CONTAINERS:
        for field, reason in PROGRAM.items():
            if field in container:
                yield (*path, field), container[field], reason, removal()
    elif not container.get("securityContext"):
        yield path, None, UNLIMITED, "give it the securityContext of the plan's containers"


def _is_never(_: Any) -> bool:
    return False


def _is_any(_: Any) -> bool:
    return True


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
    return value is None or bool(value == 0)


def _adds_or_keeps(value: Any) -> bool:
    """Return whether some capabilities are added, or not all are dropped."""
    if not isinstance(value, dict):
        return True
    dropped = value.get("drop")
    return bool(value.get("add")) or ("drop" in value and not (isinstance(dropped, list) and "ALL" in dropped))


def _is_unconfined(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and value.get("type", "Unconfined") == "Unconfined")


def _is_no_profile(value: Any) -> bool:
    """Return whether an annotation of AppArmor names no profile of the runtime or the node."""
    return value not in (None, "", "runtime/default") and not str(value).startswith("localhost/")


def _is_looser_standard(value: Any) -> bool:
    return bool(value != "restricted")


APPARMOR = "container.apparmor.security.beta.kubernetes.io/"  # then a container's name
NO_APPARMOR = "no profile of AppArmor then limits what the container may do"

# The volumes that the restricted standard forbids, `hostPath` aside, as check_restrictedVolumes.go lists them. That
# list has `csi` as well, which its code admits.
OUTSIDE_VOLUMES = (
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
)
OUTSIDE = "the pod then names storage by itself, past the cluster's claims"

CONTAINERS = (("containers",), ("initContainers",))
PROGRAM = {
    "image": "the container then runs another image than the spec names",
    "command": "the container would run another program than the plan's",
    "args": "the container's program then gets other arguments than the plan says",
}
COMMANDS = ("command", "args", "exec")  # arguments may be secrets, so these are named and not shown
UNLIMITED = "the plan has no such container, and without a securityContext it has a runtime's capabilities"

# Field, wherever it stands in a patch -> whether its value loosens something, and what is then given away.
# A field that ends in a slash stands for all that begin with it.
LOOSENING: Mapping[str, Entry] = {
    "privileged": (_is_true, "a privileged container has all rights of its node"),
    "allowPrivilegeEscalation": (_is_not_false, "a process may then get more rights than it was started with"),
    "capabilities": (_adds_or_keeps, "a capability gives the pod some of root's rights"),
    "readOnlyRootFilesystem": (_is_not_true, "a program may then change the files of its image"),
    "runAsNonRoot": (_is_not_true, "nothing then keeps the container from running as root"),
    "runAsUser": (_is_root, "who breaks out of the container is root on the node"),
    "securityContext": (_is_nothing, "without it pods run as the image says, with a runtime's capabilities"),
    "seccompProfile": (_is_unconfined, "every system call is then allowed"),
    "appArmorProfile": (_is_unconfined, NO_APPARMOR),
    APPARMOR: (_is_no_profile, NO_APPARMOR),
    "seLinuxOptions": (_is_there, "SELinux then confines the container otherwise than the node decides"),
    "sysctls": (_is_there, "the kernel is then set otherwise for the pod, which others on its node may feel"),
    "hostProcess": (_is_true, "a container of Windows then runs on its node like any program there"),
    "procMount": (_is_there, "what the kernel shows of the node is then not hidden"),
    "hostNetwork": (
        _is_true,
        "the pod then reaches all that its node reaches; kubernetes.host_network says it for units",
    ),
    "hostPID": (_is_true, "the pod could then see and kill the node's processes"),
    "hostIPC": (_is_true, "the pod then shares memory with the processes of its node"),
    "hostPath": (
        _is_there,
        "the pod then has a folder of its node, and may write there unless it is mounted read-only",
    ),
    **dict.fromkeys(OUTSIDE_VOLUMES, (_is_there, OUTSIDE)),
    "exec": (_is_there, "a program of the patch then runs in the container, with all that its pod may do"),
    "hostPort": (_is_there, "the port is then open on the node, past network policies"),
    "automountServiceAccountToken": (_is_not_false, "the container then has a token of the cluster's API"),
    "serviceAccountName": (_is_any, "the pod then has the rights of another account"),
    "shareProcessNamespace": (_is_true, "the containers of a pod then see each other's processes and files"),
    "externalIPs": (_is_there, "what is sent to these addresses then comes to the pods, whosever they are"),
    names.SECURITY_LABEL: (_is_looser_standard, "the namespace then admits such pods of anybody"),
}

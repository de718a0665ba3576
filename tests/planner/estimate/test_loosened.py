"""Which fields of a patch are warned of, and that no other is."""

import pytest

from planner.estimate.loosened import APPARMOR, LOOSENING, OUTSIDE_VOLUMES, loosened_by
from planner.facts.names import SECURITY_LABEL
from planner.spec.pods import PatchSpec

LOOSE = [
    {"privileged": True},
    {"allowPrivilegeEscalation": None},
    {"capabilities": {"add": ["NET_ADMIN"]}},
    {"capabilities": {"drop": ["NET_RAW"]}},
    {"capabilities": {"drop": "SMALL"}},
    {"capabilities": {"drop": 5}},
    {"capabilities": {"drop": True}},
    {"capabilities": None},
    {"readOnlyRootFilesystem": False},
    {"runAsNonRoot": None},
    {"runAsUser": 0},
    {"runAsUser": None},
    {"securityContext": None},
    {"seccompProfile": {"type": "Unconfined"}},
    {"appArmorProfile": None},
    {"procMount": "Unmasked"},
    {"hostNetwork": True},
    {"hostPID": True},
    {"hostIPC": True},
    {"hostPath": {"path": "/"}},
    {"hostPort": 80},
    {"automountServiceAccountToken": None},
    {SECURITY_LABEL: "privileged"},
    {f"{APPARMOR}runtime": "unconfined"},
    {"seLinuxOptions": {"type": "spc_t"}},
    {"exec": {"command": ["sh"]}},
    {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]},
    {"hostProcess": True},
    {"serviceAccountName": "admin"},
    {"shareProcessNamespace": True},
    {"externalIPs": ["10.0.0.1"]},
    *({volume: {}} for volume in OUTSIDE_VOLUMES),
]
TIGHT = {
    "securityContext": {
        "privileged": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsUser": 1000,
        "runAsNonRoot": True,
    },
    "hostPath": None,
    "hostNetwork": False,
    "hostUsers": True,
    f"{APPARMOR}runtime": "localhost/strict",
    "volumes": [{"name": "a", "csi": {"driver": "b"}}],
    "seccompProfile": {"type": "RuntimeDefault"},
    "terminationGracePeriodSeconds": 0,
}


def warned(patch):
    """The paths in `patch` that are warned of."""
    found = loosened_by([PatchSpec(kind="Deployment", patch={"spec": {"anything": [{"name": "a"}, patch]}})])
    return [each.path.removeprefix("kubernetes.patches.0.patch.spec.anything.1.") for each in found]


@pytest.mark.parametrize("patch", LOOSE, ids=str)
def test_what_loosens_security_is_named(patch):
    """By its path, wherever it stands."""
    assert warned(patch) == list(patch)


def test_every_field_is_tried():
    """Each entry of the table, so that none is misspelt."""
    assert {key.replace(f"{APPARMOR}runtime", APPARMOR) for patch in LOOSE for key in patch} == LOOSENING.keys()


@pytest.mark.parametrize(
    ("container", "found"),
    [
        ({"name": "runtime", "image": "evil"}, ["containers.0.image"]),
        ({"name": "gateway", "command": ["sh"]}, ["containers.0.command"]),
        ({"name": "gateway", "args": ["--token=secret"]}, ["containers.0.args"]),
        ({"name": "runtime", "lifecycle": {"preStop": {"exec": {}}}}, ["containers.0.lifecycle.preStop.exec"]),
        ({"name": "more", "image": "a"}, ["containers.0"]),
        ({"name": "more", "image": "a", "securityContext": {"runAsNonRoot": True}}, []),
        ({"name": "runtime", "env": []}, []),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_another_program_is_named(kind, container, found):
    """In a container of the plan, or in a further one that nothing limits. What stands in that is not said."""
    problems = list(loosened_by([PatchSpec(kind="Deployment", patch={kind: [container]})]))
    values = [each.value for each in problems if not each.path.endswith(".image")]

    assert [each.path.removeprefix("kubernetes.patches.0.patch.") for each in problems] == [
        each.replace("containers", kind) for each in found
    ]
    assert values in ([], [None])


def test_what_tightens_or_keeps_is_not_named():
    """The same fields with the values that pods have anyway."""
    assert warned(TIGHT) == []

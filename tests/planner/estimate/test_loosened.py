"""Which fields of a patch are warned of, and that no other is."""

import pytest

from planner.estimate.loosened import LOOSENING, loosened_by
from planner.facts.names import SECURITY_LABEL
from planner.spec.pods import PatchSpec

LOOSE = [
    {"privileged": True},
    {"allowPrivilegeEscalation": None},
    {"capabilities": {"add": ["NET_ADMIN"]}},
    {"capabilities": {"drop": ["NET_RAW"]}},
    {"capabilities": None},
    {"readOnlyRootFilesystem": False},
    {"runAsNonRoot": None},
    {"runAsUser": 0},
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
    "seccompProfile": {"type": "RuntimeDefault"},
    "terminationGracePeriodSeconds": 0,
}


def warned(patch):
    """The paths in `patch` that are warned of."""
    found = loosened_by([PatchSpec(kind="Deployment", patch={"spec": {"containers": [{"name": "a"}, patch]}})])
    return [each.path.removeprefix("kubernetes.patches.0.patch.spec.containers.1.") for each in found]


@pytest.mark.parametrize("patch", LOOSE, ids=str)
def test_what_loosens_security_is_named(patch):
    """By its path, wherever it stands."""
    assert warned(patch) == list(patch)


def test_every_field_is_tried():
    """Each entry of the table, so that none is misspelt."""
    assert {key for patch in LOOSE for key in patch} == LOOSENING.keys()


def test_what_tightens_or_keeps_is_not_named():
    """The same fields with the values that pods have anyway."""
    assert warned(TIGHT) == []

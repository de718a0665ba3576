"""Which fields of a patch Kubernetes does not have."""

import pytest

from planner.estimate.unknown_fields import unknown_fields_of
from planner.facts.kubernetes_types import VERSION
from planner.spec.patched_values import patched_values_are_of_their_fields_types
from planner.spec.pods import PATCHED_KINDS, PatchSpec
from tests.docs import kubernetes_fields
from tests.templates.gpu_plans import gpu_plan, rendered
from tests.templates.test_gpu_manifests import EVERYTHING


def unknown(kind, patch):
    """(path, fix) of each field that is warned of."""
    return [(each.path, str(each.fix)) for each in unknown_fields_of([PatchSpec(kind=kind, patch=patch)])]


def test_what_we_render_is_known(tmp_path):
    """Objects of every kind, with all that a spec can say of them: nothing of them is warned of."""
    documents = [each for each in rendered(gpu_plan(tmp_path), **EVERYTHING) if each["kind"] in PATCHED_KINDS]

    assert [found for each in documents for found in unknown(each["kind"], each)] == []
    assert not list(
        patched_values_are_of_their_fields_types([{"kind": each["kind"], "patch": each} for each in documents], None)
    )
    assert {"LeaderWorkerSet", "Deployment", "Service"} <= {each["kind"] for each in documents}


@pytest.mark.parametrize(
    ("kind", "patch", "path", "fix"),
    [
        ("Service", {"spec": {"sessionAfinity": "None"}}, "spec.sessionAfinity", "did you mean sessionAffinity?"),
        ("Namespace", {"metadata": {"label": {}, "labels": {}}}, "metadata.label", "remove it"),
        (
            "StatefulSet",
            {"spec": {"template": {"spec": {"volumes": [{"hostpath": {}}]}}}},
            None,
            "did you mean hostPath?",
        ),
        ("PodMonitor", {"a": {"b": 1}}, "a", "remove it"),
        ("LeaderWorkerSet", {"spec": {"leaderWorkerTemplate": {"workerTemplate": {"foo": 1}}}}, None, "remove it"),
    ],
)
def test_a_field_that_there_is_not_is_named(kind, patch, path, fix):
    """At any depth, and in items of lists."""
    ((found, said),) = unknown(kind, patch)

    assert path is None or found == f"kubernetes.patches.0.patch.{path}"
    assert said == fix


def test_maps_and_kinds_of_others_are_free():
    """Labels have any key, and what a PodMonitor has only its own operator knows."""
    assert unknown("Deployment", {"metadata": {"labels": {"a": "b"}}, "spec": None}) == []
    assert unknown("PodMonitor", {"spec": {"any": 1}}) == []


def test_the_list_is_of_the_version_that_is_named():
    """The message says which Kubernetes has no such field."""
    assert VERSION == kubernetes_fields.VERSION

"""Where in an overlay stands what an API server refuses."""

import pytest

from planner.spec.pods import OverlaySpec
from stacks.doctor.corrections import suggest_correction
from tests.templates.gpu_plans import gpu_plan, of_kind, rendered, unit_of

OVERLAY = {
    "unit_pod": {
        "metadata": {"annotations": {"example.com/a.b": 5}},
        "spec": {
            "tolerationz": [],
            "tolerations": [{"key": "a", "operator": "Exits"}],
            "containers": [{"name": "sidecar"}, {"name": "runtime", "env": [{"name": "MINE", "valuee": "1"}]}],
        },
    },
    "gateway_pod": {"spec": {"nodeSelector": {"a": "b"}}},
    "objects": [
        {"kind": "Service", "patch": {"spec": {"type": "Loud"}}},
        {"kind": "Service", "name": "river-gateway", "patch": {"spec": {"ports": [{"port": 9, "name": "A"}]}}},
    ],
}
TEMPLATE = "spec.leaderWorkerTemplate.workerTemplate"
UNIT_POD, OBJECTS = "kubernetes.overlay.unit_pod", "kubernetes.overlay.objects"


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """What a plan on H800s renders with it."""
    return rendered(gpu_plan(tmp_path_factory.mktemp("gpu")), overlay=OVERLAY)


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (f".{TEMPLATE}.spec.tolerationz: field not declared in schema", "spec.tolerationz"),
        (f'strict decoding error: unknown field "{TEMPLATE}.spec.tolerationz"', "spec.tolerationz"),
        (f"{TEMPLATE}.spec.tolerations[0].operator: Unsupported value", "spec.tolerations.0.operator"),
        (f"{TEMPLATE}.spec.containers[1].image: Required value", "spec.containers.0"),
        (
            f'.{TEMPLATE}.spec.containers[name="runtime"].env[name="MINE"].valuee: field not declared in schema',
            "spec.containers.1.env.0.valuee",
        ),
        (f".{TEMPLATE}.metadata.annotations.example.com/a.b: expected string", "metadata.annotations.example.com/a.b"),
    ],
)
def test_a_servers_path_is_followed_into_the_overlay(objects, words, place):
    """However the server writes it, and wherever the item of a list stands in the object."""
    unit = unit_of(objects)

    assert suggest_correction(unit, OverlaySpec.model_validate(OVERLAY), words) == f"correct {UNIT_POD}.{place}"


def test_a_pods_path_is_followed_from_its_template(objects):
    """A pod that was tried is refused by its own paths, and each that the overlay wrote is named."""
    words = "spec.containers[1].image: Required value, spec.tolerations[0].operator: Unsupported value"
    places = f"{UNIT_POD}.spec.containers.0 and {UNIT_POD}.spec.tolerations.0.operator"

    assert suggest_correction(
        unit_of(objects), OverlaySpec.model_validate(OVERLAY), words, tuple(TEMPLATE.split("."))
    ) == (f"correct {places}")


def test_the_last_part_that_wrote_a_field_is_named(objects):
    """Later parts win, and other parts of the same object wrote other fields."""
    service, overlay = of_kind(objects, "Service")["river-gateway"], OverlaySpec.model_validate(OVERLAY)

    assert (
        suggest_correction(service, overlay, "spec.type: Unsupported value") == f"correct {OBJECTS}.0.patch.spec.type"
    )
    name = f"correct {OBJECTS}.1.patch.spec.ports.0.name"
    assert suggest_correction(service, overlay, "spec.ports[1].name: Invalid value") == name


def test_what_the_overlay_did_not_write_is_only_suspected(objects):
    """The parts about the object are named, and none where there is none."""
    unit, overlay = unit_of(objects), OverlaySpec.model_validate(OVERLAY)

    for words in (
        f"{TEMPLATE}.spec.volumes[0].name: Duplicate value",
        "no",
        f"{TEMPLATE}.spec.containers[9].image: no",
    ):
        assert suggest_correction(unit, overlay, words) == f"see what {UNIT_POD} writes there"
    assert suggest_correction(of_kind(objects, "ConfigMap").popitem()[1], overlay, "spec.a: Required value") is None
    assert suggest_correction(unit, None, f"{TEMPLATE}.spec.tolerationz: no") is None

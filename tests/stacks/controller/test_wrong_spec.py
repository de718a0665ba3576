"""A TidemillDeployment whose spec lacks something, or says what nobody can follow: rounds go on, and no unit ends."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest
import yaml

import stacks
from planner.facts import names
from planner.facts.gate import Gate
from planner.plan.sections import LiveMap
from stacks.controller.loop import run_round
from stacks.controller.observe import UNIT_KIND
from stacks.kube.manifest import find_condition
from tests.stacks.controller.cluster import PLAN, MemoryCluster
from tests.stacks.controller.days import HOUR, MIDNIGHT, UNITS
from tests.stacks.controller.test_observe import SPEC

NOON = MIDNIGHT + 12 * HOUR
DEFINITION = yaml.safe_load((Path(stacks.__file__).parent / "controller" / "definition.yaml").read_text())
SCHEMA = DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
RULES = json.loads(
    LiveMap(
        expert_bytes=1, num_nodes=1, num_groups=1, gate=Gate(), domains=(), split="equal", device="cpu"
    ).model_dump_json()
)
FULL = SPEC | {
    "pace": 1,
    "readySeconds": 600,
    "startSeconds": 60,
    "turnSeconds": 360,
    "turns": "now",
    "sameImage": {},
    "lendNodes": {"noticeSeconds": 60},
    "heal": {"conditions": ["GPUMissing"], "labels": ["faulty=true"]},
    "stragglersLast": {},
    "liveMaps": {
        "everySeconds": 600,
        "minGain": 0.05,
        "maxBytes": 1,
        "phases": {"decode": {"ranksPerPod": 1, "rules": RULES}},
    },
    "otherDays": [{"days": ["sunday"], "steps": SPEC["steps"]}],
    "hold": {"until": "2025-11-25T00:00:00Z"},
    "force": {"state": "06:00", "until": "2025-11-25T00:00:00Z"},
}


def followed(spec):
    """A cluster whose controller has looked at it twice."""
    cluster = MemoryCluster(spec)
    for unit in cluster.replicas():
        cluster.objects[UNIT_KIND, unit]["metadata"]["labels"][names.PHASE_LABEL] = UNITS[unit]
    for second in (0, 5):
        run_round(cluster.follower(), NOON + second)
    return cluster


def optional_fields(schema, value, path=()):
    """Paths of the fields in `value` that the schema does not require."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        of = (schema.get("properties") or {}).get(key) or schema.get("additionalProperties") or {}
        if key in (schema.get("properties") or {}) and key not in schema.get("required", ()):
            yield (*path, key)
        yield from optional_fields(of, inner, (*path, key))


@pytest.mark.parametrize("path", list(optional_fields(SCHEMA, FULL)), ids=".".join)
def test_a_change_is_carried_out_whatever_optional_field_is_missing(path):
    """The schema requires what the controller reads, or the controller goes on without it."""
    jsonschema.validate(FULL, SCHEMA)
    cluster = followed(FULL)
    spec = cluster.objects[names.DEPLOYMENT_KIND, PLAN]["spec"]
    parent = spec
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    spec["units"].append({"name": "d2", "phase": "decode", "pods": 2})
    for second in (10, 15):
        run_round(cluster.follower(), NOON + second)

    assert cluster.status["changes"][-1]["left"] == [{"name": "d2", "phase": "decode", "change": "new"}]


def test_the_schema_requires_all_rules_of_expert_maps():
    """The controller reads each of them."""
    phases = SCHEMA["properties"]["liveMaps"]["properties"]["phases"]["additionalProperties"]

    assert phases["properties"]["rules"]["required"] == [*LiveMap.model_fields]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"units": [], "steps": [{"at": "00:00", "units": {}}]}, "spec.units has no unit, "),
        ({"steps": [{"at": "00:00", "units": {"prefill": 0}}]}, "spec.steps and spec.otherDays want no unit "),
        (
            {
                "liveMaps": FULL["liveMaps"]
                | {"phases": {"decode": {"ranksPerPod": 1, "rules": RULES | {"split": "?"}}}}
            },
            "spec.liveMaps.phases.decode.rules.split: ",
        ),
    ],
)
def test_units_stay_as_they_are_under_a_spec_that_nobody_can_follow(change, why):
    """The condition says which field; and the day goes on once the spec is right again."""
    cluster = followed(SPEC)
    before = copy.deepcopy(cluster.replicas())
    cluster.objects[names.DEPLOYMENT_KIND, PLAN]["spec"] |= change
    for second in (10, 15, 20):
        run_round(cluster.follower(), NOON + second)

    following = find_condition(cluster.objects[names.DEPLOYMENT_KIND, PLAN], "Following")
    assert (following["status"], following["reason"]) == ("False", "WrongDay")
    assert following["message"].startswith(why)
    assert cluster.replicas() == before
    cluster.objects[names.DEPLOYMENT_KIND, PLAN]["spec"] = copy.deepcopy(SPEC)
    run_round(cluster.follower(), NOON + 25)
    assert cluster.status["unitNames"] == [*before]
    assert find_condition(cluster.objects[names.DEPLOYMENT_KIND, PLAN], "Following")["status"] == "True"

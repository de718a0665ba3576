"""Values of variables, of an overlay and of unknown keys may be secrets: no message and no JSON has them."""

import json

import pytest

from tests.planner.spec.wrong_specs import changed

SECRET = "hunter2"


@pytest.mark.parametrize(
    "change",
    [
        {"kubernetes.env": {"A-TOKEN": SECRET}},
        {"kubernetes.env": {"POD_IP": SECRET}},
        {"kubernetes.env": {"TOKEN": {"value": SECRET}}},
        {"kubernetes.env": {"TOKEN": [SECRET]}},
        {"kubernetes.env": [{"name": "TOKEN", "value": SECRET}]},
        {"kubernetes.env": [f"TOKEN={SECRET}"]},
        {"kubernetes.env": f"TOKEN={SECRET}"},
        {"kubernetes.evn": {"TOKEN": SECRET}},
        {"decode.env": {"A-TOKEN": SECRET}},
        {"prefill.env": {"TOKEN": [SECRET]}},
        {"decode.env": f"TOKEN={SECRET}"},
        {"kubernetess": {"env": {"TOKEN": SECRET}}},
        {"kubernetes": [{"env": {"TOKEN": SECRET}}]},
        {"kubernetes": [{"namespace": "a"}, {"env": {"TOKEN": SECRET}}]},
        {"decode.kubernetes": {"env": {"TOKEN": SECRET}}},
        {"env": {"TOKEN": SECRET}},
        {"hf_token": SECRET},
        {"gateway.api_key": SECRET},
        {"slo": [{"token": SECRET}]},
        {"kubernetes.image_pull_secrets": {"password": SECRET}},
        {"kubernetes.gateway": {"env": {"TOKEN": SECRET}}},
        {"kubernetes.controller": {"env": {"TOKEN": SECRET}}},
        {"kubernetes.patches": [{"kind": "Deployment", "patch": {"spec": {"env": [{"value": SECRET}]}}}]},
        {"kubernetes.overlay": {"unit_pod": {"spec": {"containers": [{"env": [{"value": SECRET}]}]}}}},
        {"kubernetes.overlay": {"unit_pod": {"metadata": {"name": SECRET}}}},
        {"kubernetes.overlay": {"gateway_pod": SECRET}},
        {"kubernetes.overlay": {"gateway_pod": {"$retainKeys": SECRET}}},
    ],
    ids=str,
)
def test_a_variable_is_named_without_its_value(change, problems_of):
    """Neither in the text nor in JSON, whose changes a program could apply."""
    problems = problems_of(changed({"change": change}))

    assert problems
    assert SECRET not in "".join(f"{each} {json.dumps(each.as_json())}" for each in problems)

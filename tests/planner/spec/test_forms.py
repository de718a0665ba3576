"""Texts that others read: each field takes its own example, and refuses what is none in one message."""

import json
import re

import pytest

from planner.problems.fix import apply_change
from planner.rules.forms import FORMS
from tests.planner.conftest import SPEC
from tests.planner.spec.wrong_specs import data_of

VOLUME = {"mount_path": "/models", "host_path": "/mnt/models"}
OTHER_DAY = {"days": ["sunday"], "profile": [1] * 24}
WINDOW = {"at": "01:00", "prefill_units": 1, "decode_units": 1}
PHASES = {
    phase: {key: each for key, each in data_of(SPEC)[phase].items() if key != "units"}
    for phase in ("prefill", "decode")
}
FULL = data_of(SPEC) | PHASES | {
    "schedule": {"windows": [WINDOW], "other_days": [{"days": ["sunday"], "windows": [WINDOW]}]},
    "traffic": {"input_tokens": 1e9, "output_tokens": 1e9, "profile": [1] * 24, "other_days": [OTHER_DAY]},
    "kubernetes": {
        "image_pull_secrets": ["login"],
        "volumes": [dict(VOLUME)],
        "gateway": {"volumes": [dict(VOLUME)]},
        "networks": ["rdma-0"],
        "nics": {"hca": ["mlx5_0"]},
        "tolerations": [{"key": "gpu"}],
        "stage": {"source": "/models/r1", "host_path": "/mnt/nvme"},
        "rdma": {"resource": "rdma/hca"},
        "tls": {},
        "controller": {"heal": {"conditions": ["GPUMissing"]}},
    },
}  # fmt: skip
LISTED = {"cluster.nodes": [{"name": "a", "taints": ["a:NoSchedule"]}]}
OWN = {"cluster.gpu": {"name": "own", "memory": "94GiB"}}


def breaches(pattern, text, problems_of):
    """What is said of the form of `text` at the first place that `pattern` stands for."""
    path = pattern.replace("*", "0")
    base = FULL | data_at(path)
    found = problems_of(json.dumps(apply_change(base, {path: text})))
    return [each.path for each in found if each.id == "S209"], path


def data_at(path):
    """The section of nodes that are listed, or of a GPU of one's own, where `path` is in one."""
    change = LISTED if path.startswith("cluster.nodes") else OWN if path.startswith("cluster.gpu") else {}
    return {"cluster": apply_change(FULL, change)["cluster"]}


@pytest.mark.parametrize("pattern", FORMS)
def test_a_text_of_another_form_is_refused_once(pattern, problems_of):
    """Whatever field it stands in, the message has its path."""
    found, path = breaches(pattern, "n, !", problems_of)

    assert found == [path]


@pytest.mark.parametrize("pattern", FORMS)
def test_the_example_of_a_message_has_the_form(pattern, problems_of):
    """Who writes what a message shows is not told the same again."""
    example = re.split(", | or ", FORMS[pattern].example)[0]

    assert breaches(pattern, example, problems_of)[0] == []

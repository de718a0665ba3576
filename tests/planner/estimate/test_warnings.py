"""Where a warning is not given, though something like it is elsewhere."""

import json
from pathlib import Path

import pytest

import stacks
from planner.compiler import check_fit
from planner.problems.fix import applied
from planner.spec.check import check_spec
from tests.planner.layout.test_memory import PAIR

SPECS = Path(stacks.__file__).parent / "specs"


@pytest.fixture
def rules_of(spec_file):
    """Function from changes of the pair to the rules that it is warned by."""

    def rules(change):
        path = spec_file(json.dumps(applied(PAIR, change)), "warned.yaml")
        return {warning.rule[:4] for warning in check_fit(check_spec(path)).warnings}

    return rules


def test_no_overlap_is_offered_that_the_engine_lacks(rules_of):
    """S747 takes decode on vLLM to dual_batch, and W102 must not take it back."""
    assert "W102" in rules_of({"decode.overlap": "dual_batch"})
    assert "W102" not in rules_of({"engine": "vllm", "decode.overlap": "dual_batch"})


@pytest.mark.parametrize("image", ["tidemill-runtime:0.1.0", "mirror.example.com/llm:1", "a/vllm-openai@sha256:0"])
def test_an_image_may_be_called_after_no_engine(image, rules_of):
    """The default stands for the engine's own image, and a name that says no engine may hold any."""
    assert "W110" not in rules_of({"engine": "vllm", "kubernetes.image": image})


GB200 = {"gpu": "gb200", "nodes": 60, "gpus_per_node": 4}
ON_ONE_NODE = {"prefill": None, "decode": None, "mixed": {"ep_size": 8, "precision": "fp8"}}


@pytest.mark.parametrize(
    "change",
    [
        {"kubernetes.host_network": True},
        {"kubernetes.rdma": {"resource": "rdma/ib"}},
        {"kubernetes.patches": [{"kind": "LeaderWorkerSet", "patch": {"metadata": {"annotations": {"a": "b"}}}}]},
        {"cluster": GB200, "decode.ep_size": 72},
        {"cluster.gpu": "h200"} | ON_ONE_NODE,
    ],
    ids=str,
)
def test_units_may_reach_their_gpus_without_an_rdma_device_of_ours(change, rules_of):
    """By the node's network, a patch of their pods, NVLink from node to node, or on one node; W111 is for others."""
    assert "W111" in rules_of({})
    assert "W111" not in rules_of(change)


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.name)
def test_a_shipped_spec_has_rdma_where_its_units_need_it(path):
    """Who copies one and renders it gets pods that reach each other."""
    assert [each for each in check_fit(check_spec(path)).warnings if each.rule.startswith("W111")] == []

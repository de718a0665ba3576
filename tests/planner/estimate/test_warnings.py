"""Where a warning is not given, though something like it is elsewhere."""

import json
from pathlib import Path

import pytest

import stacks
from planner.plan.fit import check_fit
from planner.problems.fix import apply_change
from planner.rules.check import check_spec
from tests.planner.layout.test_memory import PAIR

SPECS = Path(stacks.__file__).parent / "specs"


@pytest.fixture
def rules_of(spec_file):
    """Function from changes of the pair to the rules that it is warned by."""

    def rules(change):
        path = spec_file(json.dumps(apply_change(PAIR, change)), "warned.yaml")
        return {warning.rule[:4] for warning in check_fit(check_spec(path)).warnings}

    return rules


def test_the_gateways_own_volumes_have_to_hold_the_tokenizer(rules_of):
    """A gateway without volumes of its own mounts the units'; an empty list says that its image has the files."""
    units = {"model": {"catalog": "deepseek-v3", "checkpoint": "/models/v3"}}
    units |= {"kubernetes": {"volumes": [{"claim": "weights", "mount_path": "/models"}]}}

    def of_gateway(volumes):
        return rules_of(units | {"kubernetes": units["kubernetes"] | {"gateway": {"volumes": volumes}}})

    assert "W106" not in rules_of(units)
    assert "W106" not in of_gateway([])
    assert "W106" not in of_gateway([{"claim": "small", "mount_path": "/models"}])
    assert "W106" in of_gateway([{"claim": "small", "mount_path": "/data"}])


def test_a_gateway_with_volumes_of_its_own_reads_where_the_copy_is(rules_of):
    """The original is shown there to a gateway that mounts the units' volumes, and to no other."""
    units = {"volumes": [{"claim": "weights", "mount_path": "/shared"}]}
    units |= {"stage": {"source": "/shared/v3", "host_path": "/mnt/nvme/v3"}}
    model = {"model": {"catalog": "deepseek-v3", "checkpoint": "/models/v3"}}

    def of_gateway(path):
        gateway = {"volumes": [{"claim": "small", "mount_path": path}]}
        return rules_of(model | {"kubernetes": units | {"gateway": gateway}})

    assert "W106" not in rules_of(model | {"kubernetes": units})
    assert "W106" not in of_gateway("/models/v3")
    assert "W106" in of_gateway("/shared/v3")


@pytest.mark.parametrize(
    "image", ["tidemill-runtime:0.1.0", "mirror.example.com/llm:1", f"a/vllm-openai@sha256:{64 * '0'}"]
)
def test_an_image_may_be_called_after_no_engine(image, rules_of):
    """The default stands for the engine's own image, and a name that says no engine may hold any."""
    assert "W107" not in rules_of({"engine": "vllm", "kubernetes.image": image})


@pytest.mark.parametrize("image", ["vllm-openai:v0.33.0rc2", "a/vllm-openai:latest", "me/my-vllm:1.2.3", "a:5000/vllm"])
def test_a_tag_without_a_version_may_have_the_plans_version(image, rules_of):
    """A private image name may have its own versions, and a tag without a version may be any."""
    assert "W107" not in rules_of({"engine": "vllm", "kubernetes.image": image})
    assert "W107" in rules_of({"engine": "vllm", "kubernetes.image": "a:5000/vllm-openai:v0.3.0.post1"})


def test_no_image_is_offered_for_a_model_that_the_runtime_lacks(rules_of):
    """W107 offers the image with the kernels of GPUs, which has no other families than the one for CPUs."""
    on_h200 = {"prefill": None, "decode": None, "mixed": {"ep_size": 8, "precision": "fp8"}, "cluster.gpu": "h200"}
    assert "W107" in rules_of({"model": {"catalog": "deepseek-r1", "checkpoint": "/models/r1"}} | on_h200)
    assert "W107" not in rules_of({"model": {"catalog": "qwen3-235b-a22b", "checkpoint": "/models/qwen"}} | on_h200)


@pytest.mark.parametrize(("gpu", "num", "is_said"), [("gb200", 8, True), ("h100", 16, True), ("h100", 8, False)])
def test_nodes_hold_as_many_gpus_as_are_built(gpu, num, is_said, rules_of):
    """W112 where a node has more: 4 of a GB200, 8 on a board of the others."""
    one_phase = {"prefill": None, "decode": None, "mixed": {"ep_size": 16, "precision": "fp8"}}
    assert ("W112" in rules_of({"cluster": {"gpu": gpu, "nodes": 4, "gpus_per_node": num}} | one_phase)) is is_said


GB200 = {"gpu": "gb200", "nodes": 60, "gpus_per_node": 4}
ON_ONE_NODE = {"prefill": None, "decode": None, "mixed": {"ep_size": 8, "precision": "fp8"}}


@pytest.mark.parametrize(
    "change",
    [
        {"kubernetes.host_network": True},
        {"kubernetes.rdma": {"resource": "rdma/ib"}},
        {"kubernetes.overlay": {"unit_pod": {"metadata": {"annotations": {"a": "b"}}}}},
        {"cluster": GB200, "decode.ep_size": 72},
        {"cluster.gpu": "h200"} | ON_ONE_NODE,
    ],
    ids=str,
)
def test_units_may_reach_their_gpus_without_an_rdma_device_of_ours(change, rules_of):
    """Units may use the node's network, an overlay, NVLink between nodes, or one node; W111 is for all others."""
    assert "W111" in rules_of({})
    assert "W111" not in rules_of(change)


@pytest.mark.parametrize(
    ("change", "is_said"),
    [
        ({}, False),
        ({"kubernetes.compute_domain": False}, True),
        ({"prefill.ep_size": 16, "engine": "sglang"}, True),
        ({"prefill.ep_size": 8, "engine": "sglang"}, False),
        ({"prefill.ep_size": 16}, False),  # the bundled runtime takes another exchange there
    ],
    ids=str,
)
def test_nvlink_between_nodes_is_no_way_for_all(change, is_said, rules_of):
    """W111 where the spec leaves it out, and where SGLang's prompts go from eight GPUs to the next by NICs alone."""
    joined = {"cluster": GB200, "prefill.ep_size": 8, "prefill.redundant_experts": 0, "decode.ep_size": 32}
    fp8 = {"prefill.precision": "fp8", "decode.precision": "fp8", "decode.redundant_experts": 0}

    assert ("W111" in rules_of(joined | fp8 | change)) is is_said


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.name)
def test_a_shipped_spec_has_rdma_where_its_units_need_it(path):
    """Who copies one and renders it gets pods that reach each other."""
    assert [each for each in check_fit(check_spec(path)).warnings if each.rule.startswith("W111")] == []

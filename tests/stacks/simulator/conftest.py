"""The published day and a small mixed deployment, planned and played once."""

from pathlib import Path

import pytest
import yaml

import stacks
from planner.compiler import run_passes
from planner.rules.check import change_spec, check_spec
from stacks.simulator.flows.day import simulate_day

SPECS = Path(stacks.__file__).parent / "specs"
PAIR_TRAFFIC = {
    "input_tokens": 16e9,  # three quarters of what the prefill unit computes in a day
    "output_tokens": 6e9,
    "cache_hit_rate": 0.563,
    "profile": [2, 1, 1, 1, 1, 1, 2, 3, 5, 7, 8, 8, 8, 8, 8, 8, 8, 8, 7, 7, 6, 5, 4, 3],
}


@pytest.fixture(scope="session")
def published():
    """The plan of the published system."""
    return run_passes(check_spec(SPECS / "deepseek-h800.yaml"))


@pytest.fixture(scope="session")
def published_day(published):
    return simulate_day(published)


@pytest.fixture(scope="session")
def pair_spec(tmp_path_factory):
    """The file of one prefill and one decode unit with a spare for each node size, and traffic."""
    spec = yaml.safe_load((SPECS / "h800-one-pair.yaml").read_text())
    spec["cluster"]["nodes"] = 23
    spec["cluster"]["spares"] = ["node-22"]
    spec["traffic"] = PAIR_TRAFFIC
    spec["cost"] = {"usd_per_gpu_hour": 2.0, "prices": {"input_hit": 0.14, "input_miss": 0.55, "output": 2.19}}
    path = tmp_path_factory.mktemp("pair") / "pair.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


@pytest.fixture(scope="session")
def pair(pair_spec):
    return run_passes(check_spec(pair_spec))


@pytest.fixture(scope="session")
def small_spec(tmp_path_factory):
    """The file of two mixed units on nodes of H200, with a spare and traffic: planned in a moment."""
    spec = yaml.safe_load((SPECS / "h200-single-node.yaml").read_text())
    spec["cluster"] |= {"nodes": 3, "spares": ["node-2"]}
    spec["mixed"]["units"] = 2
    spec["traffic"] = PAIR_TRAFFIC | {"input_tokens": 1e9, "output_tokens": 3e8}
    path = tmp_path_factory.mktemp("small") / "small.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


@pytest.fixture(scope="session")
def mixed():
    """A node of H200 with traffic that half fills it."""
    return run_passes(_of_one_node({}))


@pytest.fixture(scope="session")
def drafting():
    """The same node and its traffic, with two drafts in each step."""
    return run_passes(_of_one_node({"engine": "sglang", "mixed.draft_tokens": 2}))


def _of_one_node(changes):
    spec = check_spec(SPECS / "h200-single-node.yaml")
    point = {"requests": 32, "kv_tokens": 2150, "prompt_tokens": 2000}
    traffic = {"input_tokens": 1.2e9, "output_tokens": 1.8e8}
    return change_spec(spec, {"operating_point": {"mixed": point}, "traffic": traffic} | changes)


@pytest.fixture(scope="session")
def duo(tmp_path_factory):
    """One prefill and one decode unit, each on one node of H200: sixteen ranks together."""
    spec = yaml.safe_load((SPECS / "h200-single-node.yaml").read_text())
    phase = spec.pop("mixed") | {"redundant_experts": 0}
    batch = phase.pop("max_batch_tokens")
    requests = phase.pop("max_requests")
    spec |= {"prefill": phase | {"max_batch_tokens": batch}, "decode": phase | {"max_requests": requests}}
    spec["cluster"]["nodes"] = 2
    spec["operating_point"] = {
        "prefill": {"step_tokens": 4096, "prompt_tokens": 2000},
        "decode": {"requests": 32, "kv_tokens": 2300},
    }
    spec["traffic"] = {"input_tokens": 2e9, "output_tokens": 3e8}
    path = tmp_path_factory.mktemp("duo") / "duo.yaml"
    path.write_text(yaml.safe_dump(spec))
    return run_passes(check_spec(path))

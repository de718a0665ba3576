"""Launch files of large units: ConfigMaps hold them, and the runtime reads what pods mount."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.compiler import compile_plan
from planner.facts.digest import digest_of
from planner.manifests.render import render_files
from planner.plan.launch import launch_digest, unit_digest
from planner.spec.check import check_spec
from runtime import launch as reader
from runtime.errors import LaunchError
from runtime.launch import read_unit_launch

DEMO = Path(__file__).parents[2] / "stacks" / "specs" / "demo.yaml"
UNIT, FILE = "demo-decode-0", "demo-decode-0.launch.json"
MIB = 2**20  # what the API server takes in one ConfigMap
LAYERS, EXPERTS = 58, 256  # DeepSeek-V3's
LARGEST_IN_ONE, LARGE = 2304, 5120  # slots


@pytest.fixture(scope="module")
def demo():
    """The demo's plan."""
    return compile_plan(check_spec(DEMO)).deployable


def with_slots(plan, num_slots):
    """`plan`, whose decode unit has a map of a DeepSeek-V3 with so many slots."""
    draw = random.Random(num_slots)
    every = list(range(EXPERTS))
    rows = [every + draw.choices(every, k=num_slots - EXPERTS) for _ in range(LAYERS)]
    for row in rows:
        draw.shuffle(row)
    named = {"physical_to_logical": rows, "num_logical_experts": EXPERTS, "sha256": digest_of(rows)}
    document = plan.launch_documents[FILE] | {"expert_map": named}
    document |= {"unit_digest": unit_digest(document)}
    document |= {"launch_digest": launch_digest(document)}
    return replace(plan, launch_documents=plan.launch_documents | {FILE: document})


def objects_of(plan):
    """The rendered objects of the unit, by file name."""
    files = {name: text for name, text in render_files(plan).items() if UNIT in name}
    return {name: yaml.load(text, Loader=yaml.CSafeLoader) for name, text in files.items()}


def config_maps(objects):
    """ConfigMap's name -> its data."""
    return {each["metadata"]["name"]: each["data"] for each in objects.values() if each["kind"] == "ConfigMap"}


def mount(objects, folder):
    """Write into `folder` what the kubelet writes into the volume `launch` of the unit's pods."""
    (group,) = (each for each in objects.values() if each["kind"] == "LeaderWorkerSet")
    pod = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    (volume,) = (each for each in pod["volumes"] if each["name"] == "launch")
    held = config_maps(objects)
    for source in volume["projected"]["sources"]:
        for file, text in held[source["configMap"]["name"]].items():
            assert not (folder / file).exists()
            (folder / file).write_text(text)
    (launch,) = (each for each in pod["containers"][0]["args"] if each.startswith("--launch="))
    return folder / Path(launch).name


@pytest.fixture(scope="module")
def large(demo):
    """The objects of a unit whose launch file is larger than a ConfigMap."""
    return objects_of(with_slots(demo, LARGE))


def test_a_large_map_fits_one_config_map_with_room(demo):
    """2,304 slots in 58 layers take less than half of what the API server allows."""
    (data,) = config_maps(objects_of(with_slots(demo, LARGEST_IN_ONE))).values()

    assert {file: len(text.encode()) < MIB / 2 for file, text in data.items()} == {FILE: True}


def test_a_larger_file_is_in_several_config_maps(large):
    """None holds more than the API server takes, each says to which unit it belongs, and all are listed."""
    held = config_maps(large)

    assert len(held) == 2
    assert all(sum(len(text.encode()) for text in data.values()) < MIB for data in held.values())
    assert {each["metadata"]["labels"]["tidemill.dev/unit"] for each in large.values()} == {UNIT}
    assert [name for name in large if name.startswith("configmap")] == [
        f"configmap-{UNIT}.yaml",
        f"configmap-{UNIT}-part-1.yaml",
    ]


@pytest.mark.parametrize("num_slots", [LARGEST_IN_ONE, LARGE])
def test_the_runtime_reads_what_pods_mount(demo, num_slots, tmp_path):
    """From one file or from several, every slot arrives, and the digests are over the whole."""
    plan = with_slots(demo, num_slots)
    launch = read_unit_launch(mount(objects_of(plan), tmp_path))
    document = plan.launch_documents[FILE]

    assert launch.expert_map.physical_to_logical == document["expert_map"]["physical_to_logical"]
    assert (launch.launch_digest, launch.unit_digest) == (document["launch_digest"], document["unit_digest"])


def test_another_map_is_another_name_for_every_part(demo, large):
    """Pods never see parts of two launch files, whichever ConfigMap arrives first."""
    other = objects_of(with_slots(demo, LARGE + 4))

    assert config_maps(large).keys().isdisjoint(config_maps(other))


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_part_is_refused(large, lost, tmp_path):
    """Half a launch file is no launch file."""
    path = mount(large, tmp_path)
    (tmp_path / f"{FILE}.{lost}").unlink()

    with pytest.raises(LaunchError, match=FILE):
        read_unit_launch(path)


def test_a_file_of_more_than_any_plan_needs_is_refused(monkeypatch, tmp_path):
    """The reader takes no more of it."""
    monkeypatch.setattr(reader, "MAX_BYTES", 1000)
    (tmp_path / "launch.json").write_bytes(b"0" * 1001)

    with pytest.raises(LaunchError, match=r"launch\.json has more than 1000 bytes"):
        read_unit_launch(tmp_path / "launch.json")

"""Launch files of large units: ConfigMaps hold them, and the runtime reads what pods mount."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.compiler import compile_plan
from planner.facts.digest import digest_of
from planner.manifests.render import render_files
from planner.plan.launch import launch_digest, strip_map, unit_digest
from planner.rules.check import check_spec
from runtime import launch as reader
from runtime.errors import LaunchError
from runtime.launch import read_unit_launch

DEMO = Path(__file__).parents[2] / "stacks" / "specs" / "demo.yaml"
UNIT, FILE = "demo-decode-0", "demo-decode-0.launch.json"
SECOND = "demo-decode-1"
MAP = "demo-decode-map"
MIB = 2**20  # what the API server takes in one ConfigMap
LAYERS, EXPERTS = 58, 256  # DeepSeek-V3's
SMALL, LARGEST_IN_ONE, LARGE = 256, 2304, 5120  # slots


@pytest.fixture(scope="module")
def demo():
    """The demo's plan."""
    return compile_plan(check_spec(DEMO))


def with_slots(plan, num_slots, num_layers=LAYERS):
    """`plan` with two decode units, which have a map of a DeepSeek-V3 with so many slots."""
    draw = random.Random(num_slots)
    every = list(range(EXPERTS))
    rows = [every + draw.choices(every, k=num_slots - EXPERTS) for _ in range(num_layers)]
    for row in rows:
        draw.shuffle(row)
    named = {"physical_to_logical": rows, "num_logical_experts": EXPERTS, "sha256": digest_of(rows)}
    told = {}
    for unit in (UNIT, SECOND):
        document = plan.launch_documents[FILE] | {"expert_map": named, "unit": unit}
        document |= {"unit_digest": unit_digest(document)}
        told[f"{unit}.launch.json"] = strip_map(document | {"launch_digest": launch_digest(document)})
    units = [each for each in plan.units if each.name == UNIT]
    units.append(replace(units[0], name=SECOND, index=1))
    large = plan.expert_maps[units[0].expert_map].model_copy(update={"physical_to_logical": rows})
    maps = plan.expert_maps | {named["sha256"]: large}
    return plan.with_sections(units=tuple(units), expert_maps=maps, launch_documents=plan.launch_documents | told)


def objects_of(plan, unit=UNIT):
    """The rendered objects of the unit and of its phase's map, by file name."""
    files = {name: text for name, text in render_files(plan).items() if unit in name or MAP in name}
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
        data = held[source["configMap"]["name"]]
        items = source["configMap"].get("items") or [{"key": key, "path": key} for key in data]
        for each in items:
            assert not (folder / each["path"]).exists()
            (folder / each["path"]).write_text(data[each["key"]])
    (launch,) = (each for each in pod["containers"][0]["args"] if each.startswith("--launch="))
    return folder / Path(launch).name


@pytest.fixture(scope="module")
def large(demo):
    """The objects of a unit whose launch file is larger than a ConfigMap."""
    return objects_of(with_slots(demo, LARGE))


def test_a_large_map_fits_one_config_map_with_room(demo):
    """2,304 slots in 58 layers take less than half of what the API server allows."""
    (data,) = (data for name, data in config_maps(objects_of(with_slots(demo, LARGEST_IN_ONE))).items() if MAP in name)

    assert {file: len(text.encode()) < MIB / 2 for file, text in data.items()} == {"expert-map.0": True}


def test_a_larger_file_is_in_several_config_maps(large):
    """None holds more than the API server takes; the unit's own says whose it is, and the map's are the plan's."""
    held = config_maps(large)

    assert len(held) == 3
    assert all(sum(len(text.encode()) for text in data.values()) < MIB for data in held.values())
    assert {name: each["metadata"]["labels"].get("tidemill.dev/unit") for name, each in large.items()} == {
        f"configmap-{MAP}.yaml": None,
        f"configmap-{MAP}-part-1.yaml": None,
        f"configmap-{UNIT}.yaml": UNIT,
        f"networkpolicy-{UNIT}.yaml": UNIT,
        f"service-{UNIT}.yaml": UNIT,
        f"leaderworkerset-{UNIT}.yaml": UNIT,
    }


def test_units_of_a_phase_share_the_objects_of_their_map(demo):
    """All that a second unit adds is smaller than a hundredth of the map."""
    plan = with_slots(demo, LARGEST_IN_ONE)
    first, second = (config_maps(objects_of(plan, unit)) for unit in (UNIT, SECOND))
    shared = first.keys() & second.keys()

    assert {name.rpartition("-")[0] for name in shared} == {MAP}
    assert [100 * len(str(second[name])) < len(str(first)) for name in second.keys() - shared] == [True]


def test_a_small_map_stands_in_each_launch_file(demo, tmp_path):
    """As `tidemill up` would have written the file, byte for byte."""
    plan = with_slots(demo, SMALL, num_layers=4)
    held = config_maps(objects_of(plan))

    assert [data.keys() for data in held.values()] == [{FILE}]
    assert mount(objects_of(plan), tmp_path).read_text() == plan.launch_files()[FILE]


@pytest.mark.parametrize("unit", [UNIT, SECOND])
@pytest.mark.parametrize("num_slots", [LARGEST_IN_ONE, LARGE])
def test_the_runtime_reads_what_pods_mount(demo, num_slots, unit, tmp_path):
    """From several files every slot arrives, and the digests are over the whole."""
    plan = with_slots(demo, num_slots)
    launch = read_unit_launch(mount(objects_of(plan, unit), tmp_path))
    document = plan.documents[f"{unit}.launch.json"]

    assert launch.expert_map.physical_to_logical == document["expert_map"]["physical_to_logical"]
    assert (launch.launch_digest, launch.unit_digest) == (document["launch_digest"], document["unit_digest"])


def test_another_map_is_another_name_for_every_part(demo, large):
    """Pods never see parts of two launch files, whichever ConfigMap arrives first."""
    other = objects_of(with_slots(demo, LARGE + 4))

    assert config_maps(large).keys().isdisjoint(config_maps(other))


@pytest.mark.parametrize("lost", [0, 1, 2])
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

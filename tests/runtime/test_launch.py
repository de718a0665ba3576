"""A launch file is read whole and unchanged, or refused in one sentence before anything is loaded."""

import os

import pytest

from runtime.errors import LaunchError
from runtime.launch import UNIT_DIGEST_KEYS, Disk, canonical_digest, read_gateway_launch, read_unit_launch
from tests.runtime.launch_documents import GATEWAY, UNIT, change_leaf, leaf_paths, reseal, seal, write

UNIT_LEAVES = sorted(leaf_paths(UNIT), key=str)
WRITTEN = seal(UNIT, kv_cache__transport="nixl")
WITH_TIER = seal(UNIT, limits__host_bytes=2**30)
WITH_DISK = seal(WITH_TIER, limits__disk={"path": "/kv", "max_bytes": 2**40})
WHERE_TO_MEET = ("gateway", "tls", "ports")  # may differ between the ranks of a unit, so only launch_digest covers them
BROKEN_RULES = {
    "slots that do not divide": {"expert_map__physical_to_logical": [[0, 1, 2], [0, 1, 2]]},
    "an expert without slot": {"expert_map__physical_to_logical": [[0, 1, 2, 0], [0, 1, 0, 1]]},
    "an expert that does not exist": {"expert_map__physical_to_logical": [[0, 1, 2, 3], [0, 1, 2, 0]]},
    "a negative expert": {"expert_map__physical_to_logical": [[0, 1, 2, -1], [0, 1, 2, 0]]},
    "layers of different length": {"expert_map__physical_to_logical": [[0, 1, 2, 0], [0, 1, 2, 0, 1, 2]]},
    "ranks out of order": {"ranks": UNIT["ranks"][::-1]},
    "two ranks in one place": {"ranks": [{"place": 0, "local_rank": 0, "rank": rank} for rank in (0, 1)]},
    "a place without ranks": {"places": ["node-0", "node-1", "node-2"]},
    "a rank in a place that there is not": {"places": ["node-0"]},
    "two places on one node": {"places": ["node-0", "node-0"]},
    "a spare that has a place": {"spares": ["node-1"]},
    "no ranks": {"ranks": []},
    "KV for less than one request": {"limits__kv_tokens": UNIT["limits"]["max_request_tokens"] - 1},
    "a disk without host memory": {"limits__disk": {"path": "/kv", "max_bytes": 2**30}},
    "KV of another type than the precision's": {"precision": "bf16"},
    "FP8 with KV in FP32": {"precision": "fp8"},
    "no layers": {"expert_map__physical_to_logical": []},
}
MALFORMED = {
    "an unknown key": {"surprise": 1},
    "an unknown key in a part": {"limits__surprise": 1},
    "a word for a number": {"limits__max_requests": "eight"},
    "a number for a word": {"unit": 7},
    "an unknown phase": {"phase": "training"},
    "an unknown split": {"split": "by mood"},
    "an unknown precision": {"precision": "fp64"},
    "a step of no tokens": {"limits__max_batch_tokens": 0},
    "a disk at a path that depends on where one stands": {
        "limits__host_bytes": 1,
        "limits__disk": {"path": "kv", "max_bytes": 2**30},
    },
    "an unknown KV wire version": {"kv_cache__wire_version": 1},
    "an unknown transport": {"kv_cache__transport": "ucx"},
    "more experts than any model has": {"expert_map__num_logical_experts": 10**12},
    "an expert that is no integer": {"expert_map__physical_to_logical": [[0, 1, 2, 0.5], [0, 1, 2, 0]]},
}


def refusal(read, path):
    with pytest.raises(LaunchError) as error:
        read(path)
    sentence = str(error.value)
    assert "\n" not in sentence
    assert str(path) in sentence
    return sentence


def test_a_refusal_does_not_write_to_the_terminal(tmp_path):
    """A refusal escapes control characters in the file's digests."""
    path = write(tmp_path, reseal(seal(UNIT) | {"unit_digest": "\x1b[2J"}))

    assert r"its unit_digest says \x1b[2J," in refusal(read_unit_launch, path)


@pytest.mark.parametrize(
    ("layer", "said"),
    [([0, 1, 0, 1], "leaves expert 2 of MoE layer 1 without a slot"), ([0, 1, 2, 3], "has expert 3 in MoE layer 1")],
)
def test_an_expert_without_a_slot_or_a_model_is_named(tmp_path, layer, said):
    """A map has all experts of the model and no others."""
    slots = {"physical_to_logical": [[0, 1, 2, 0], layer]}
    document = seal(UNIT | {"expert_map": UNIT["expert_map"] | slots})

    assert said in refusal(read_unit_launch, write(tmp_path, document))


def test_a_unit_reads_what_is_written(tmp_path):
    """A unit reads all values, and each place has its ranks."""
    launch = read_unit_launch(write(tmp_path, seal(UNIT)))

    assert (launch.unit, launch.phase, launch.kv_cache.bytes_per_token) == ("demo-decode-0", "decode", 96)
    assert launch.expert_map.physical_to_logical == UNIT["expert_map"]["physical_to_logical"]
    assert [each.rank for each in launch.place_ranks(1)] == [1]
    assert launch.place_ranks(9) == []


def test_units_exchange_kv_by_one_transport(tmp_path):
    """Absent, it is TCP; and units with another one have another digest."""
    read, written = (read_unit_launch(write(tmp_path, document)) for document in (seal(UNIT), WRITTEN))

    assert (read.kv_cache.transport, written.kv_cache.transport) == ("tcp", "nixl")
    assert read.kv_digest != written.kv_digest


def test_room_for_blocks_is_a_limit_of_one_unit(tmp_path):
    """Host memory and disk for blocks are optional, and not a part of the KV digest."""
    without, with_tier, with_disk = (
        read_unit_launch(write(tmp_path, document)) for document in (seal(UNIT), WITH_TIER, WITH_DISK)
    )

    assert (with_tier.limits.host_bytes, without.limits.host_bytes) == (2**30, 0)
    assert (with_tier.limits.disk, with_disk.limits.disk) == (None, Disk("/kv", 2**40))
    assert with_disk.kv_digest == with_tier.kv_digest == without.kv_digest
    assert len({each.unit_digest for each in (without, with_tier, with_disk)}) == 3


def test_a_gateway_reads_what_is_written(tmp_path):
    """A gateway reads all values."""
    launch = read_gateway_launch(write(tmp_path, seal(GATEWAY)))

    assert (launch.model.name, launch.ports.http) == ("org/small", 8000)


@pytest.mark.parametrize("path", UNIT_LEAVES, ids=lambda path: ".".join(map(str, path)))
def test_one_changed_value_is_refused(tmp_path, path):
    """A change of any single value is refused."""
    refusal(read_unit_launch, write(tmp_path, change_leaf(seal(UNIT), path)))


@pytest.mark.parametrize("path", sorted(leaf_paths(GATEWAY), key=str), ids=lambda path: ".".join(map(str, path)))
def test_one_changed_value_of_the_gateway_is_refused(tmp_path, path):
    """A change of any single value of the gateway's file is refused."""
    refusal(read_gateway_launch, write(tmp_path, change_leaf(seal(GATEWAY), path)))


@pytest.mark.parametrize(
    "path",
    [path for path in UNIT_LEAVES if path[0] not in (*WHERE_TO_MEET, "launch_digest")],
    ids=lambda path: ".".join(map(str, path)),
)
def test_a_change_under_a_new_launch_digest_is_refused(tmp_path, path):
    """A change under a new launch digest is caught by the digest of the unit, the KV or the map."""
    refusal(read_unit_launch, write(tmp_path, reseal(change_leaf(seal(UNIT), path))))


@pytest.mark.parametrize("changes", BROKEN_RULES.values(), ids=BROKEN_RULES)
def test_a_plan_that_cannot_run_is_refused(tmp_path, changes):
    """Ranks or slots that make no sense are refused, even with right digests."""
    refusal(read_unit_launch, write(tmp_path, seal(UNIT, **changes)))


@pytest.mark.parametrize("changes", MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_of_the_format_is_refused(tmp_path, changes):
    """Unknown keys and wrong types are refused, even with right digests."""
    refusal(read_unit_launch, write(tmp_path, seal(UNIT, **changes)))


@pytest.mark.parametrize("key", UNIT)
def test_a_missing_key_is_refused(tmp_path, key):
    """A missing key is refused, because there are no defaults."""
    document = {name: value for name, value in seal(UNIT).items() if name != key}

    refusal(read_unit_launch, write(tmp_path, document if key == "launch_digest" else reseal(document)))


@pytest.mark.parametrize("version", [1, 3, "2", None, [2]])
def test_another_version_names_both(tmp_path, version):
    """Another version is refused with both versions."""
    sentence = refusal(read_unit_launch, write(tmp_path, seal(UNIT, version=version, unheard_of="new in 3")))

    assert f"has version {version!r}, this runtime reads version 2" in sentence


@pytest.mark.parametrize("name", ["launch_digest", "unit_digest", "kv_digest", "expert_map.sha256"])
def test_a_digest_mismatch_prints_both_digests(tmp_path, name):
    """A wrong digest is refused with the digest of the content."""
    right, wrong = seal(UNIT), "sha256:" + "f" * 64
    part, key = (right["expert_map"], "sha256") if "." in name else (right, name)
    expected = part[key]
    part[key] = wrong
    if name == "expert_map.sha256":  # the digests around it are right for the file as edited
        right = seal(UNIT) | {"expert_map": part}
        right["unit_digest"] = canonical_digest({key: right[key] for key in UNIT_DIGEST_KEYS})
    sentence = refusal(read_unit_launch, write(tmp_path, right if name == "launch_digest" else reseal(right)))

    assert f"its {name} says {wrong}" in sentence
    assert expected in sentence


def test_a_file_that_is_not_there_is_named(tmp_path):
    """A missing file is named with the system's reason."""
    assert "No such file" in refusal(read_unit_launch, tmp_path / "nowhere.json")


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[1, 2]", "7", "null", '{"version": 1'])
def test_what_is_no_json_object_is_refused(tmp_path, text):
    """Broken JSON, and JSON that is no object, are refused."""
    refusal(read_unit_launch, write(tmp_path, text))


@pytest.mark.parametrize("depth", range(100, 1000, 20))
def test_a_file_of_any_depth_is_refused_in_a_sentence(tmp_path, depth):
    """A file of any depth of nesting is refused in one sentence."""
    path = tmp_path / "launch.json"
    path.write_text('{"version": 2, "x": ' + "[" * depth + "]" * depth + "}")

    refusal(read_unit_launch, path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    """Bytes that are not UTF-8 are refused."""
    path = tmp_path / "launch.json"
    path.write_bytes(b"\xff\xfe\x00{")

    refusal(read_unit_launch, path)


def test_a_unit_does_not_read_a_gateways_file(tmp_path):
    """A unit does not read a gateway's file, nor the other way round."""
    refusal(read_unit_launch, write(tmp_path, seal(GATEWAY)))
    refusal(read_gateway_launch, write(tmp_path, seal(UNIT)))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("read", [read_unit_launch, read_gateway_launch])
def test_what_never_ends_is_refused(tmp_path, read, make):
    """A FIFO, a folder and a device in place of the file are refused."""
    make(tmp_path / "launch.json")

    refusal(read, tmp_path / "launch.json")

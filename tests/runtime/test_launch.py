"""A launch file is taken whole and unchanged, or refused in one sentence before anything is loaded."""

import os

import pytest

from runtime.errors import LaunchError
from runtime.launch import UNIT_DIGEST_KEYS, Disk, canonical_digest, read_gateway_launch, read_unit_launch
from tests.runtime.launch_documents import GATEWAY, UNIT, leaves, resealed, sealed, with_leaf_changed, write

UNIT_LEAVES = sorted(leaves(UNIT), key=str)
WITH_TIER = sealed(UNIT, limits__host_bytes=2**30)
WITH_DISK = sealed(WITH_TIER, limits__disk={"path": "/kv", "max_bytes": 2**40})
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
    """What the file says in place of a digest is shown with its control characters written out."""
    path = write(tmp_path, resealed(sealed(UNIT) | {"unit_digest": "\x1b[2J"}))

    assert r"its unit_digest says \x1b[2J," in refusal(read_unit_launch, path)


def test_a_unit_reads_what_is_written(tmp_path):
    """All values arrive, and a place has its ranks."""
    launch = read_unit_launch(write(tmp_path, sealed(UNIT)))

    assert (launch.unit, launch.phase, launch.kv_cache.bytes_per_token) == ("demo-decode-0", "decode", 96)
    assert launch.expert_map.physical_to_logical == UNIT["expert_map"]["physical_to_logical"]
    assert [each.rank for each in launch.place_ranks(1)] == [1]
    assert launch.place_ranks(9) == []


def test_room_for_blocks_is_a_limit_of_one_unit(tmp_path):
    """Absent, there is none in host memory or on a disk; and units that exchange KV need not have the same."""
    without, with_tier, with_disk = (
        read_unit_launch(write(tmp_path, document)) for document in (sealed(UNIT), WITH_TIER, WITH_DISK)
    )

    assert (with_tier.limits.host_bytes, without.limits.host_bytes) == (2**30, 0)
    assert (with_tier.limits.disk, with_disk.limits.disk) == (None, Disk("/kv", 2**40))
    assert with_disk.kv_digest == with_tier.kv_digest == without.kv_digest
    assert len({each.unit_digest for each in (without, with_tier, with_disk)}) == 3


def test_a_gateway_reads_what_is_written(tmp_path):
    """All values arrive."""
    launch = read_gateway_launch(write(tmp_path, sealed(GATEWAY)))

    assert (launch.model.name, launch.ports.http) == ("org/small", 8000)


@pytest.mark.parametrize("path", UNIT_LEAVES, ids=lambda path: ".".join(map(str, path)))
def test_one_changed_value_is_refused(tmp_path, path):
    """Whatever single value is edited, the file is refused."""
    refusal(read_unit_launch, write(tmp_path, with_leaf_changed(sealed(UNIT), path)))


@pytest.mark.parametrize("path", sorted(leaves(GATEWAY), key=str), ids=lambda path: ".".join(map(str, path)))
def test_one_changed_value_of_the_gateway_is_refused(tmp_path, path):
    """Whatever single value is edited, the gateway's file is refused."""
    refusal(read_gateway_launch, write(tmp_path, with_leaf_changed(sealed(GATEWAY), path)))


@pytest.mark.parametrize(
    "path",
    [path for path in UNIT_LEAVES if path[0] not in (*WHERE_TO_MEET, "launch_digest")],
    ids=lambda path: ".".join(map(str, path)),
)
def test_a_change_under_a_new_launch_digest_is_refused(tmp_path, path):
    """Who edits a value and only the file's own digest is caught by the digest of the unit, the KV or the map."""
    refusal(read_unit_launch, write(tmp_path, resealed(with_leaf_changed(sealed(UNIT), path))))


@pytest.mark.parametrize("changes", BROKEN_RULES.values(), ids=BROKEN_RULES)
def test_a_plan_that_cannot_run_is_refused(tmp_path, changes):
    """Digests may all be right: ranks and slots must still make sense."""
    refusal(read_unit_launch, write(tmp_path, sealed(UNIT, **changes)))


@pytest.mark.parametrize("changes", MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_of_the_format_is_refused(tmp_path, changes):
    """Unknown keys and values of another kind are refused, digests right or not."""
    refusal(read_unit_launch, write(tmp_path, sealed(UNIT, **changes)))


@pytest.mark.parametrize("key", UNIT)
def test_a_missing_key_is_refused(tmp_path, key):
    """There are no defaults."""
    document = {name: value for name, value in sealed(UNIT).items() if name != key}

    refusal(read_unit_launch, write(tmp_path, document if key == "launch_digest" else resealed(document)))


@pytest.mark.parametrize("version", [1, 3, "2", None, [2]])
def test_another_version_names_both(tmp_path, version):
    """The sentence says which version the file has and which this runtime reads."""
    sentence = refusal(read_unit_launch, write(tmp_path, sealed(UNIT, version=version, unheard_of="new in 3")))

    assert f"has version {version!r}, this runtime reads version 2" in sentence


@pytest.mark.parametrize("name", ["launch_digest", "unit_digest", "kv_digest", "expert_map.sha256"])
def test_a_digest_mismatch_prints_both_digests(tmp_path, name):
    """What the file says and what its content is."""
    right, wrong = sealed(UNIT), "sha256:" + "f" * 64
    part, key = (right["expert_map"], "sha256") if "." in name else (right, name)
    expected = part[key]
    part[key] = wrong
    if name == "expert_map.sha256":  # the digests around it are right for the file as edited
        right = sealed(UNIT) | {"expert_map": part}
        right["unit_digest"] = canonical_digest({key: right[key] for key in UNIT_DIGEST_KEYS})
    sentence = refusal(read_unit_launch, write(tmp_path, right if name == "launch_digest" else resealed(right)))

    assert f"its {name} says {wrong}" in sentence
    assert expected in sentence


def test_a_file_that_is_not_there_is_named(tmp_path):
    """With the system's reason."""
    assert "No such file" in refusal(read_unit_launch, tmp_path / "nowhere.json")


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[1, 2]", "7", "null", '{"version": 1'])
def test_what_is_no_json_object_is_refused(tmp_path, text):
    """Broken JSON, and JSON that is no object."""
    refusal(read_unit_launch, write(tmp_path, text))


@pytest.mark.parametrize("depth", range(100, 1000, 20))
def test_a_file_of_any_depth_is_refused_in_a_sentence(tmp_path, depth):
    """Some depths are read, and are too deep for what comes after."""
    path = tmp_path / "launch.json"
    path.write_text('{"version": 2, "x": ' + "[" * depth + "]" * depth + "}")

    refusal(read_unit_launch, path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    """Not even UTF-8."""
    path = tmp_path / "launch.json"
    path.write_bytes(b"\xff\xfe\x00{")

    refusal(read_unit_launch, path)


def test_a_unit_does_not_read_a_gateways_file(tmp_path):
    """Nor the other way round."""
    refusal(read_unit_launch, write(tmp_path, sealed(GATEWAY)))
    refusal(read_gateway_launch, write(tmp_path, sealed(UNIT)))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("read", [read_unit_launch, read_gateway_launch])
def test_what_never_ends_is_refused(tmp_path, read, make):
    """A FIFO, which would be waited for, a folder and a device."""
    make(tmp_path / "launch.json")

    refusal(read, tmp_path / "launch.json")

"""Ranks that read different weights do not serve together, although no rank can see another's files."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from runtime.checkpoint import (
    MANIFEST,
    ReadWeights,
    agreed_weights,
    index_tensors,
    make_manifest,
    open_shards,
    read_shards,
    write_manifest,
)
from runtime.errors import CheckpointError
from runtime.expert_parallel.group import SoloGroup
from runtime.launch import read_unit_launch
from runtime.model.engine import Engine, EngineConfig
from runtime.worker.worker import agree_on_weights, bind_to_weights
from tests.runtime.joined_groups import joined_groups
from tests.runtime.launch_documents import UNIT, seal, write
from tests.runtime.random_checkpoints import FP8, V3, write_checkpoint

LOGICAL = list(range(V3["n_routed_experts"]))
EXPERTS = [LOGICAL] * 2
TWICE = [LOGICAL * 2] * 2  # each of two ranks holds all of them
EXPERT = "model.layers.2.mlp.experts.7"
UP, SHARED = f"{EXPERT}.up_proj.weight", "model.layers.1.self_attn.o_proj.weight"
PARTS = [f"model.layers.{layer}.mlp.experts.{expert}" for layer in (1, 2) for expert in range(3)]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return a checkpoint in two shards, with projections in FP8 and without a manifest."""
    folder = tmp_path_factory.mktemp("same") / "checkpoint"
    return write_checkpoint(folder, V3 | {"quantization_config": FP8}, num_shards=2)


@pytest.fixture
def copy(original, tmp_path):
    """Return the other node's copy of the checkpoint."""
    return shutil.copytree(original, tmp_path / "copy")


@pytest.fixture
def join(free_port):
    """Let two ranks load a folder each and meet. Return each one's digest or error."""

    def join(*folders, expert_map=TWICE):
        def rank(group, folder):
            engine = Engine(EngineConfig(folder, expert_map, torch.float32), group)
            try:
                return agree_on_weights(group, engine.loaded.summarise(f"rank {group.rank} on node-{group.rank}"))
            except CheckpointError as error:
                return str(error)

        with ThreadPoolExecutor(2) as ranks:
            return list(ranks.map(rank, joined_groups(2, free_port()), folders))

    return join


def weights(folder):
    """Return the digest of the weights that a unit of one rank reads."""
    engine = Engine(EngineConfig(folder, EXPERTS, torch.float32), SoloGroup())
    return agreed_weights([engine.loaded.summarise("rank 0")])


def flip_bit(folder, name):
    """Change the lowest bit of a tensor's first byte."""
    tensor = index_tensors(read_shards(folder))[name]
    with tensor.path.open("r+b") as file:
        file.seek(tensor.start)
        byte = file.read(1)[0]
        file.seek(tensor.start)
        file.write(bytes([byte ^ 1]))


def rewrite(folder, num_shards):
    """Write the same tensors in other files, in the opposite order."""
    tensors = {name: values for path in folder.glob("*.safetensors") for name, values in load_file(path).items()}
    for path in folder.glob("*.safetensors"):
        path.unlink()
    names = sorted(tensors, reverse=True)
    parts = {f"part-{number}.safetensors": names[number::num_shards] for number in range(num_shards)}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize("expert_map", [TWICE, [LOGICAL, LOGICAL[::-1]]], ids=["copies", "shares"])
def test_equal_copies_join(original, copy, join, expert_map):
    """Ranks with equal copies join, and their digest is that of any unit which reads them."""
    assert join(original, copy, expert_map=expert_map) == [weights(original)] * 2


@given(st.lists(st.sets(st.sampled_from(PARTS)), min_size=1, max_size=5), st.data())
def test_the_digest_is_that_of_all_experts_wherever_they_are(shares, data):
    """The digest is the same for any number of ranks. If one reads another expert, its holders or the digest differ."""
    shares = [*shares, set(PARTS)]
    ranks = [
        ReadWeights(f"rank {rank}", {"lm_head.weight": "a"}, dict.fromkeys(held, "b"))
        for rank, held in enumerate(shares)
    ]
    whole = agreed_weights(ranks[-1:])
    rank, part = data.draw(st.sampled_from([(rank, part) for rank in ranks for part in sorted(rank.experts)]))
    is_alone = sum(part in each.experts for each in ranks) == 1

    assert agreed_weights(ranks) == whole
    rank.experts[part] = "another"
    if is_alone:
        assert agreed_weights(ranks) != whole
    else:
        with pytest.raises(CheckpointError, match=f"reads other weights than rank .: {part} is "):
            agreed_weights(ranks)


@pytest.mark.parametrize("num_shards", [1, 5])
def test_the_same_tensors_in_other_files_are_the_same_weights(original, copy, num_shards):
    """Other shards, another order and other times do not change the digest."""
    rewrite(copy, num_shards)

    assert weights(copy) == weights(original)


@pytest.mark.parametrize("name", [UP, f"{UP}_scale_inv", SHARED, f"{SHARED}_scale_inv", "lm_head.weight"])
def test_one_bit_of_any_tensor_makes_other_weights(original, copy, name):
    """One bit of an expert, of a common tensor or of a scale changes the digest."""
    flip_bit(copy, name)

    assert weights(copy) != weights(original)


@pytest.mark.parametrize(
    ("name", "part"),
    [(UP, EXPERT), (f"{UP}_scale_inv", EXPERT), (SHARED, "model.layers.1"), *[("lm_head.weight",) * 2]],
)
def test_ranks_that_hold_different_copies_do_not_join(original, copy, join, name, part):
    """Ranks that read different copies of a part do not join, and all name the part and the two ranks."""
    flip_bit(copy, name)

    first, second = join(original, copy)

    assert first == second
    assert second.startswith(f"rank 1 on node-1 reads other weights than rank 0 on node-0: {part} is sha256:")


def test_another_type_is_another_weight(tmp_path):
    """The same values stored in another type have another digest."""
    folder = write_checkpoint(tmp_path / "one", V3)
    tensors = load_file(folder / "model.safetensors")
    digests = []
    for dtype in (torch.float32, torch.bfloat16):
        save_file(tensors | {SHARED: torch.zeros_like(tensors[SHARED], dtype=dtype)}, folder / "model.safetensors")
        digests.append(weights(folder))

    assert len(set(digests)) == 2


def test_another_config_is_another_model(copy, original, join):
    """Another config changes the digest, even if no tensor differs."""
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rms_norm_eps": config["rms_norm_eps"] * 2}))

    assert "config.json is " in join(original, copy)[0]


def test_manifests_stand_for_the_files(original, copy, tmp_path, join):
    """Ranks with equal manifests join. If only one has a manifest, that is named."""
    with_one = shutil.copytree(original, tmp_path / "with")
    for folder in (copy, with_one):
        with open_shards(folder) as shards:
            write_manifest(make_manifest(folder, shards, 1, lambda _: None), folder / MANIFEST)

    assert len(set(join(with_one, copy))) == 1
    assert " is missing, not sha256:" in join(original, copy)[1]


@pytest.mark.parametrize("is_named", [False, True])
def test_units_of_different_weights_exchange_no_kv(tmp_path, original, copy, is_named):
    """If the launch files name no weights, units that loaded different ones have different KV digests."""
    planned = "sha256:" + "0" * 64 if is_named else None
    launch = read_unit_launch(write(tmp_path, seal(UNIT, checkpoint__weights_digest=planned)))
    before = weights(original)
    flip_bit(copy, UP)
    prefill, same, decode = (bind_to_weights(launch, each).kv_digest for each in (before, before, weights(copy)))

    assert prefill == same
    assert (prefill == launch.kv_digest) == (prefill == decode) == is_named

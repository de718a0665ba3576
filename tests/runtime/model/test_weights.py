"""A rank holds exactly its slots' tensors, and an incomplete checkpoint is refused."""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.checkpoint import index_tensors, read_shards
from runtime.errors import CheckpointError
from runtime.expert_parallel.group import GlooGroup, SoloGroup
from runtime.model.engine import Engine, EngineConfig
from runtime.offline import greedy
from tests.runtime.joined_groups import joined_groups

EP = 4
EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.")


@pytest.fixture(scope="module")
def contiguous_map(demo_config):
    return [list(range(demo_config.n_routed_experts)) for _ in range(demo_config.num_moe_layers)]


@pytest.fixture(scope="module")
def ranks(demo, redundant_map):
    """Return the engines of four ranks, loaded and not joined."""
    return [Engine(EngineConfig(demo, redundant_map, torch.float32), GlooGroup(rank, EP)) for rank in range(EP)]


def solo(folder, expert_map):
    return Engine(EngineConfig(folder, expert_map, torch.float32), SoloGroup())


def named_experts(names, config):
    """Return {(MoE layer, expert)} of tensor names."""
    found = (EXPERT.match(name) for name in names)
    return {(int(match[1]) - config.first_k_dense_replace, int(match[2])) for match in found if match}


def test_each_rank_holds_exactly_its_slots_tensors(demo, demo_config, ranks, redundant_map):
    """A rank reads its own experts' three matrices and every tensor that is no routed expert, and nothing else."""
    everything = set(index_tensors(read_shards(demo)))
    dense = {name for name in everything if not EXPERT.match(name)}

    for rank, engine in enumerate(ranks):
        slots = slice(rank * 9, (rank + 1) * 9)
        own = {(layer, expert) for layer, experts in enumerate(redundant_map) for expert in experts[slots]}
        names = set(engine.loaded.tensor_names)
        assert len(names) == len(engine.loaded.tensor_names)
        assert named_experts(names, demo_config) == own
        assert len(names) == len(dense) + 3 * len(own)
        assert dense <= names


def test_the_ranks_hold_every_tensor_together(demo, ranks):
    """The ranks together read every tensor of the checkpoint."""
    assert set().union(*(engine.loaded.tensor_names for engine in ranks)) == set(index_tensors(read_shards(demo)))


def test_a_rank_has_no_room_for_other_experts(ranks, demo_config):
    """A rank's parameters have only its nine slots a layer."""
    for engine in ranks:
        stacked = [value for name, value in engine.model.named_parameters() if name.endswith("experts.gate_up")]
        assert [len(value) for value in stacked] == [9] * demo_config.num_moe_layers


def test_every_slot_holds_its_experts_values(demo, demo_config, ranks, redundant_map):
    """Each slot's gate, up and down are the tensors of the expert that the map names."""
    stored = load_file(demo / "model.safetensors")

    for rank, engine in enumerate(ranks):
        for moe_layer, experts in enumerate(redundant_map):
            layer = moe_layer + demo_config.first_k_dense_replace
            local = engine.model.model.layers[layer].mlp.experts
            for slot, expert in enumerate(experts[rank * 9 : (rank + 1) * 9]):
                prefix = f"model.layers.{layer}.mlp.experts.{expert}"
                gate_up = [stored[f"{prefix}.{name}_proj.weight"].float() for name in ("gate", "up")]
                assert torch.equal(local.gate_up[slot], torch.cat(gate_up))
                assert torch.equal(local.down[slot], stored[f"{prefix}.down_proj.weight"].float())


def test_progress_counts_every_tensor(demo, contiguous_map):
    """Progress counts from 1 to the number of this rank's tensors."""
    seen = []
    config = EngineConfig(demo, contiguous_map, torch.float32)
    engine = Engine(config, SoloGroup(), lambda done, total: seen.append((done, total)))

    assert seen == [(done, len(engine.loaded.tensor_names)) for done in range(1, len(engine.loaded.tensor_names) + 1)]


def test_other_weights_in_a_slot_change_the_logits(demo, contiguous_map, prompts):
    """Two experts' weights swapped in one layer give other logits."""
    engine = solo(demo, contiguous_map)
    before = engine.prefill(prompts[:4])[0]
    a, b = engine.model.load.rows[1].topk(2).indices.tolist()
    experts = engine.model.model.layers[2].mlp.experts
    with torch.no_grad():
        for stacked in (experts.gate_up, experts.down):
            stacked[[a, b]] = stacked[[b, a]]
    after = engine.prefill(prompts[:4])[0]

    assert (after - before).abs().max() > 0.1


def test_a_permuted_map_moves_the_rows_and_not_the_logits(demo, contiguous_map, prompts):
    """On one rank a permuted map moves the counts of rows, and not the logits."""
    permuted = [
        torch.randperm(len(layer), generator=torch.Generator().manual_seed(1)).tolist() for layer in contiguous_map
    ]
    engines = [solo(demo, expert_map) for expert_map in (contiguous_map, permuted)]
    one, other = (engine.prefill(prompts[:4])[0] for engine in engines)
    rows, permuted_rows = (engine.model.load.rows for engine in engines)

    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert not torch.equal(rows, permuted_rows)
    assert torch.equal(rows.gather(1, torch.tensor(permuted)), permuted_rows)


def test_a_permuted_map_moves_work_between_ranks_and_not_the_text(
    demo, contiguous_map, redundant_map, prompts, free_port
):
    """At EP2 a permuted map moves rows between ranks, and not the text."""

    def run(expert_map):
        def rank(group):
            engine = Engine(EngineConfig(demo, expert_map, torch.float32), group)
            text = greedy(engine, group, prompts[group.rank : 6 : 2], 8, set())
            group.any(False)
            return text, engine.model.load.rows.sum(1).tolist(), engine.model.dispatcher.traffic.bytes_sent

        with ThreadPoolExecutor(2) as ranks:
            return zip(*ranks.map(rank, joined_groups(2, free_port())), strict=True)

    texts, rows, sent = run(contiguous_map)
    other_texts, other_rows, other_sent = run([layer[::-1] for layer in contiguous_map])
    third_texts, third_rows, third_sent = run(redundant_map)

    assert texts == other_texts == third_texts
    assert rows == other_rows[::-1]  # the reversed map gives each rank the other's experts
    assert rows != other_rows
    assert [sum(layer) for layer in zip(*rows, strict=True)] == [sum(layer) for layer in zip(*third_rows, strict=True)]
    assert rows != third_rows
    assert min(*sent, *other_sent, *third_sent) > 0


@pytest.fixture
def checkpoint_copy(demo, tmp_path):
    """Return a copy of config and weights that a test may spoil."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(demo / name, tmp_path)
    return tmp_path


def refusal(folder, expert_map):
    with pytest.raises(CheckpointError) as error:
        solo(folder, expert_map)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_missing_tensor_is_named(checkpoint_copy, contiguous_map):
    """A missing tensor is named with the folder."""
    name = "model.layers.3.mlp.experts.17.up_proj.weight"
    tensors = load_file(checkpoint_copy / "model.safetensors")
    del tensors[name]
    save_file(tensors, checkpoint_copy / "model.safetensors")

    assert f"has no tensor {name}" in refusal(checkpoint_copy, contiguous_map)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(checkpoint_copy, contiguous_map):
    """A tensor of another shape is named with its shape and the config's."""
    name = "model.layers.2.mlp.experts.5.down_proj.weight"
    tensors = load_file(checkpoint_copy / "model.safetensors")
    tensors[name] = tensors[name].T.contiguous()
    save_file(tensors, checkpoint_copy / "model.safetensors")

    assert refusal(checkpoint_copy, contiguous_map).endswith(
        f"{name} is stored as [64, 192], its config.json says [192, 64]"
    )


@pytest.mark.parametrize("kept", [0, 4, 8, 9, 1000, 0.5, 0.999, -1])
def test_a_truncated_file_is_refused(checkpoint_copy, contiguous_map, kept):
    """A file cut in its header's size, its header or its data is refused."""
    path = checkpoint_copy / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])

    assert "truncated" in refusal(checkpoint_copy, contiguous_map)


def test_a_file_that_goes_on_too_long_is_refused(checkpoint_copy, contiguous_map):
    """A file that is longer than its header says is refused, like two joined downloads."""
    with (checkpoint_copy / "model.safetensors").open("ab") as file:
        file.write(b"more")

    assert "damaged" in refusal(checkpoint_copy, contiguous_map)


@pytest.mark.parametrize(
    "header",
    [
        b"\xff\x00\xfe",
        b"{not json",
        b"[1, 2]",
        b"7",
        b'{"a": 1}',
        b'{"a": {}}',
        b'{"a": {"dtype": "F32", "shape": [1]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": []}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": "x"}}',
        b'{"a": {"dtype": "F32", "shape": 1, "data_offsets": [0, 0]}}',
        b'{"a": ' + b"[" * 100_000,
    ],
    ids=lambda header: repr(header[:60]),
)
def test_a_garbage_header_is_refused(checkpoint_copy, contiguous_map, header):
    """A header that is no JSON, or describes no tensors, is refused."""
    (checkpoint_copy / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)

    assert "safetensors" in refusal(checkpoint_copy, contiguous_map)


def test_a_file_of_garbage_is_refused(checkpoint_copy, contiguous_map):
    """A file whose first eight bytes promise an absurd header is refused."""
    (checkpoint_copy / "model.safetensors").write_bytes(b"<html>not found</html>" * 100)

    assert "no safetensors file" in refusal(checkpoint_copy, contiguous_map)


def test_missing_files_are_named(checkpoint_copy, contiguous_map):
    """Missing weights are named, and so is a missing config."""
    (checkpoint_copy / "model.safetensors").unlink()
    assert "cannot read" in refusal(checkpoint_copy, contiguous_map)

    (checkpoint_copy / "config.json").unlink()
    assert "config.json" in refusal(checkpoint_copy, contiguous_map)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 256}, "is stored as"),
        ({"num_hidden_layers": 6}, "the expert map has 4 MoE layers, the checkpoint 5"),
        ({"vocab_size": 5000}, "is stored as"),
        ({"n_routed_experts": 64}, "the expert map is not one of the checkpoint's 64 experts"),
        ({"q_lora_rank": None}, "has no tensor model.layers.0.self_attn.q_proj.weight"),
        ({"kv_lora_rank": "64"}, "kv_lora_rank is '64', a number is needed"),
        ({"model_type": "llama"}, "model_type is 'llama', this runtime computes only 'deepseek_v3'"),
        ({"rope_scaling": {"type": "yarn", "factor": 40}}, "rope_scaling.original_max_position_embeddings is None"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.quant_method is 'awq'"),
        ({"quantization_config": {"weight_block_size": [64, 64]}}, "quantization_config.weight_block_size is [64, 64]"),
        ({"quantization_config": {"scale_fmt": "ue5m3"}}, "scale_fmt is 'ue5m3', this runtime computes only None and"),
    ],
    ids=str,
)
def test_a_config_of_another_model_is_refused(checkpoint_copy, contiguous_map, changes, words):
    """A config of another model is refused with the shape that differs or the value that is not computed."""
    path = checkpoint_copy / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    assert words in refusal(checkpoint_copy, contiguous_map)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", pytest.param("[" * 100_000, id="deep")])
def test_a_config_that_is_no_json_object_is_refused(checkpoint_copy, contiguous_map, text):
    """A config that is no JSON object is refused."""
    (checkpoint_copy / "config.json").write_text(text)

    assert "JSON" in refusal(checkpoint_copy, contiguous_map)


def test_shards_are_read_through_their_index(checkpoint_copy, contiguous_map, prompts):
    """Two shards with an index give what one file gives."""
    tensors = load_file(checkpoint_copy / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, checkpoint_copy / file)
    expected = solo(checkpoint_copy, contiguous_map).prefill(prompts[:1])[0]
    (checkpoint_copy / "model.safetensors").unlink()
    weight_map = {name: file for file, held in shards.items() for name in held}
    (checkpoint_copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    assert torch.equal(solo(checkpoint_copy, contiguous_map).prefill(prompts[:1])[0], expected)


def test_a_missing_shard_is_named(checkpoint_copy, contiguous_map):
    """A shard that the index names and that is missing is named."""
    (checkpoint_copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))

    assert "gone.safetensors" in refusal(checkpoint_copy, contiguous_map)


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/elsewhere.safetensors", "sub/a.safetensors", "..", ""])
def test_a_shard_that_is_not_beside_its_index_is_refused(checkpoint_copy, contiguous_map, name):
    """A shard elsewhere is refused: a checkpoint must not choose which files are read."""
    (checkpoint_copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))

    assert f"names the file {name!r}, which is not the name of a file beside it" in refusal(
        checkpoint_copy, contiguous_map
    )


def test_a_shard_whose_name_no_file_can_have_is_not_there(checkpoint_copy, contiguous_map):
    """A shard with a name too long for any file system counts as missing."""
    (checkpoint_copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "n" * 300}}))

    assert "is not there" in refusal(checkpoint_copy, contiguous_map)


def test_a_tensor_in_two_shards_is_refused(checkpoint_copy, contiguous_map):
    """A tensor in two shards is refused."""
    name = "model.norm.weight"
    tensors = load_file(checkpoint_copy / "model.safetensors")
    save_file({name: tensors[name] + 1}, checkpoint_copy / "other.safetensors")
    weight_map = dict.fromkeys(tensors, "model.safetensors") | {"x": "other.safetensors"}
    (checkpoint_copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    assert f"{name} is in two files, model.safetensors and other.safetensors" in refusal(
        checkpoint_copy, contiguous_map
    )


@pytest.mark.parametrize(
    "offsets",
    [[(0, 8), (0, 8)], [(-8, 0), (0, 8)], [(4, 8), (8, 16)], [(0, 4), (8, 16)], [(8, 0), (8, 16)]],
    ids=str,
)
def test_tensors_that_do_not_follow_each_other_are_refused(tmp_path, offsets):
    """Tensors that overlap each other or the header, or leave a gap, are refused."""
    entries = {
        name: {"dtype": "F32", "shape": [2], "data_offsets": each} for name, each in zip("ab", offsets, strict=True)
    }
    header = json.dumps(entries).encode()
    data = bytes(max(end for _, end in offsets))
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)

    with pytest.raises(CheckpointError, match=r"is damaged: . has bytes"):
        index_tensors(read_shards(tmp_path))


@pytest.mark.parametrize("in_place", [False, True])
def test_a_file_that_changes_while_it_is_loaded_is_refused(checkpoint_copy, contiguous_map, in_place):
    """A file that is written to or replaced while it is loaded is refused, even with the same size."""
    file, new = checkpoint_copy / "model.safetensors", checkpoint_copy / "new.safetensors"

    def change(done, total):
        if done == total // 2:
            new.write_bytes(file.read_bytes()[:-1] + b"x")
            file.write_bytes(new.read_bytes()) if in_place else new.replace(file)

    with pytest.raises(CheckpointError, match=r"model\.safetensors changed while it was read: start again once"):
        Engine(EngineConfig(checkpoint_copy, contiguous_map, torch.float32), SoloGroup(), change)


def test_what_is_loaded_is_of_the_file_whose_header_was_read(checkpoint_copy, contiguous_map):
    """If another file has its name for a while, nothing of that file is read."""
    file, other, away = (checkpoint_copy / f"{name}.safetensors" for name in ("model", "other", "away"))
    save_file({name: torch.zeros(3) for name in load_file(file)}, other)

    def swap(done, total):
        if done == 1:
            file.rename(away)
            other.rename(file)
        elif done == total:
            away.replace(file)

    engine = Engine(EngineConfig(checkpoint_copy, contiguous_map, torch.float32), SoloGroup(), swap)

    assert engine.loaded.digests == solo(checkpoint_copy, contiguous_map).loaded.digests

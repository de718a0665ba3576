"""A checkpoint in FP8 or not becomes a model in FP8 or not, with little more memory than the model's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import runtime
from runtime.errors import CheckpointError
from runtime.expert_parallel.group import SoloGroup
from runtime.kernels.fp8 import BLOCK, E4M3, Quantised, dequantise_matrix
from runtime.model import weights
from runtime.model.engine import Engine, EngineConfig
from runtime.model.fp8 import Fp8Experts, Fp8Linear
from tests.runtime.closeness import median_row_error
from tests.runtime.random_checkpoints import FP8, V3, quantise_projections, write_checkpoint

# Beside the small sizes: a projection with blocks in both dimensions, of which 128 divides neither.
SIZES = V3 | {"hidden_size": 200, "moe_intermediate_size": 136, "intermediate_size": 300, "n_routed_experts": 8}
QUANTISED = SIZES | {"quantization_config": FP8}
EXPERTS = [list(range(SIZES["n_routed_experts"]))] * 2
TIED, EMBEDDING, HEAD = SIZES | {"tie_word_embeddings": True}, "model.embed_tokens.weight", "lm_head.weight"
WHOLE, SHARED, LAYER = "model.safetensors", "mlp.shared_experts.up_proj.weight", "model.layers.1."


@pytest.fixture(scope="module")
def wide_file(tmp_path_factory):
    """Return a checkpoint in FP32."""
    return write_checkpoint(tmp_path_factory.mktemp("unquantized_dtype") / "checkpoint", SIZES)


@pytest.fixture(scope="module")
def fp8_file(tmp_path_factory):
    """Return the same weights in FP8, in three shards, so that scales lie in other files than their codes."""
    return write_checkpoint(tmp_path_factory.mktemp("fp8") / "checkpoint", QUANTISED, num_shards=3)


def engine(folder, dtype):
    return Engine(EngineConfig(folder, EXPERTS, dtype), SoloGroup())


def read_stored(folder):
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def parameters(model):
    """Return parameters by the names of their tensors, expert by expert."""
    found = {name: value.data for name, value in model.named_parameters() if ".mlp.experts." not in name}
    for layer in (1, 2):
        for expert in range(SIZES["n_routed_experts"]):
            tensors = model.model.layers[layer].mlp.experts.tensors(expert)
            found |= {f"model.layers.{layer}.mlp.experts.{expert}.{name}": value for name, value in tensors.items()}
    return found


def are_equal(one, other):
    """Return whether two tensors of any type are equal bit for bit."""
    return one.dtype == other.dtype and torch.equal(
        one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
    )


def test_fp8_is_kept_as_stored(fp8_file):
    """Codes and scales are kept bit for bit; kv_b_proj, which is computed in BF16, is codes times scales."""
    tensors = read_stored(fp8_file)
    found = parameters(engine(fp8_file, E4M3).model)

    in_fp8 = {name for name, value in found.items() if value.dtype == E4M3}
    assert in_fp8 == {name for name, value in tensors.items() if value.dtype == E4M3 and "kv_b_proj" not in name}
    for name in in_fp8:
        assert are_equal(found[name], tensors[name])
        assert are_equal(found[f"{name}_scale_inv"], tensors[f"{name}_scale_inv"])
    name = "model.layers.0.self_attn.kv_b_proj.weight"
    assert are_equal(found[name], dequantise_matrix(Quantised(tensors[name], tensors[f"{name}_scale_inv"])).bfloat16())
    assert are_equal(found["lm_head.weight"], tensors["lm_head.weight"].bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fp8_is_dequantised_for_wider_matrices(fp8_file, dtype):
    """A wider matrix is its codes times its scales, rounded once."""
    tensors = read_stored(fp8_file)
    found = parameters(engine(fp8_file, dtype).model)

    assert set(found) == {name for name in tensors if not name.endswith("_scale_inv")}
    for name, values in found.items():
        expected = tensors[name]
        if expected.dtype == E4M3:
            expected = dequantise_matrix(Quantised(expected, tensors[f"{name}_scale_inv"]))
        assert are_equal(values, expected.to(values.dtype))


def test_wider_matrices_are_quantised_for_fp8(wide_file, fp8_file):
    """A model quantised at loading equals one quantised in the file."""
    at_loading, in_file = (parameters(engine(folder, E4M3).model) for folder in (wide_file, fp8_file))

    assert at_loading.keys() == in_file.keys()
    assert all(are_equal(at_loading[name], in_file[name]) for name in in_file if "kv_b_proj" not in name)


def test_tensors_in_parts_are_the_whole_tensors(fp8_file, wide_file, monkeypatch):
    """A tensor read in parts is the whole tensor, down to parts of one row of blocks."""
    whole = [parameters(engine(folder, dtype).model) for folder, dtype in ((fp8_file, E4M3), (wide_file, E4M3))]
    monkeypatch.setattr(weights, "PART_BYTES", 1)
    parts = [parameters(engine(folder, dtype).model) for folder, dtype in ((fp8_file, E4M3), (wide_file, E4M3))]

    assert SIZES["hidden_size"] > BLOCK
    for one, other in zip(whole, parts, strict=True):
        assert all(are_equal(one[name], other[name]) for name in one)


def test_scales_are_powers_of_two_where_the_config_says_so(fp8_file, tmp_path):
    """With V3.1's `scale_fmt`, every place that quantises rows uses powers of two, dispatch included."""
    told = QUANTISED | {"quantization_config": FP8 | {"scale_fmt": "ue8m0"}}
    plain, rounded = (engine(folder, E4M3) for folder in (fp8_file, write_checkpoint(tmp_path / "v31", told)))
    quantisers = [module for module in rounded.model.modules() if isinstance(module, (Fp8Linear, Fp8Experts))]

    assert len(quantisers) == 3 * 4 + 3 + 2 * (3 + 1)
    assert all(module.power_of_two for module in [*quantisers, rounded.model.dispatcher.row_format])
    assert not any(getattr(module, "power_of_two", False) for module in plain.model.modules())
    text = [list(range(60))]
    expected, one, other = (each.prompt_logits(text)[0] for each in (engine(fp8_file, torch.float32), plain, rounded))
    assert not torch.equal(one, other)
    assert max(median_row_error(one, expected), median_row_error(other, expected)) < 0.085  # random weights leave 0.07


def test_weights_quantised_at_loading_have_the_configs_scales(tmp_path):
    """V3.1's weights, converted to BF16, are quantised again without loss."""
    folder = write_checkpoint(tmp_path / "v31", SIZES)
    told = QUANTISED | {"quantization_config": FP8 | {"scale_fmt": "ue8m0"}}
    (folder / "config.json").write_text(json.dumps(told))
    first = dequantise_values(engine(folder, E4M3))
    save_file({name: values.bfloat16() for name, values in first.items()}, folder / WHOLE)
    again = engine(folder, E4M3)
    scales = [values for name, values in parameters(again.model).items() if name.endswith("_scale_inv")]

    assert all((torch.frexp(each).mantissa == 0.5).all() for each in scales)
    assert all(
        torch.equal(values, first[name]) for name, values in dequantise_values(again).items() if "bias" not in name
    )


def dequantise_values(loaded):
    """Return parameters by name, with FP8 ones as their values."""
    found = parameters(loaded.model)
    return {
        name: dequantise_matrix(Quantised(values, found[f"{name}_scale_inv"])) if values.dtype == E4M3 else values
        for name, values in found.items()
        if not name.endswith("_scale_inv")
    }


def test_the_names_of_scales_are_among_what_was_read(fp8_file, wide_file):
    """The names that were read include the scales in the file, and no others."""
    for folder, dtype in ((fp8_file, E4M3), (fp8_file, torch.float32), (wide_file, E4M3)):
        assert sorted(engine(folder, dtype).loaded.tensor_names) == sorted(read_stored(folder))


@pytest.mark.parametrize("dtype", [torch.float32, E4M3], ids=str)
@pytest.mark.parametrize("names", [[EMBEDDING], [HEAD], [EMBEDDING, HEAD]], ids=str)
def test_a_tied_matrix_is_one_whatever_the_file_calls_it(tmp_path, names, dtype):
    """A tied matrix is read under either name or both, and the model has it once."""
    folder = write_checkpoint(tmp_path / "tied", TIED)
    tensors = read_stored(folder)
    matrix = tensors.pop(EMBEDDING)
    save_file(tensors | {name: matrix.clone() for name in names}, folder / WHOLE)
    loaded = engine(folder, dtype)

    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert are_equal(loaded.model.lm_head.weight.data, matrix.to(loaded.backend.unquantized_dtype))
    assert sorted(loaded.loaded.tensor_names) == sorted(read_stored(folder))


def test_two_matrices_that_the_config_calls_one_are_refused_in_a_sentence(tmp_path):
    """Two different matrices that the config calls one are refused."""
    folder = write_checkpoint(tmp_path / "tied", TIED)
    tensors = read_stored(folder)
    save_file(tensors | {HEAD: tensors[EMBEDDING] + 1}, folder / WHOLE)

    with pytest.raises(CheckpointError, match=r"says that lm_head\.weight is model\.embed_tokens\.weight .*different"):
        engine(folder, torch.float32)


@pytest.fixture
def refuse_spoiled(tmp_path):
    """Write an FP8 checkpoint with changes, and return the sentence that refuses it."""

    def spoil(changes):
        folder = write_checkpoint(tmp_path / "spoiled", QUANTISED)
        tensors = load_file(folder / WHOLE)
        tensors.update({name: change(tensors[name]) for name, change in changes.items()})
        save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / WHOLE)
        with pytest.raises(CheckpointError) as error:
            engine(folder, E4M3)
        assert "\n" not in str(error.value)
        return str(error.value)

    return spoil


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (f"{SHARED}_scale_inv", lambda scales: None, f"{LAYER}{SHARED} is stored in FP8 without {LAYER}{SHARED}_scale"),
        (f"{SHARED}_scale_inv", lambda scales: scales[:1], "is stored as [1, 2], but [136, 200] in blocks of 128"),
        (f"{SHARED}_scale_inv", lambda scales: scales.bfloat16(), "is stored as BF16, this runtime reads F32"),
        (SHARED, lambda codes: codes.to(torch.float8_e5m2), "is stored as F8_E5M2, this runtime reads F32, BF16, F8"),
        (SHARED, lambda codes: codes[:, :-1].contiguous(), "is stored as [136, 199], its config.json says [136, 200]"),
    ],
)  # fmt: skip
def test_fp8_that_cannot_be_read_is_refused_in_a_sentence(refuse_spoiled, name, change, words):
    """FP8 with scales that are missing or of another shape or type is refused, and so is another kind of FP8."""
    assert words in refuse_spoiled({LAYER + name: change})


def test_fp8_in_a_vector_is_refused_in_a_sentence(refuse_spoiled):
    """A vector in FP8 is refused, because it has no blocks."""
    norm = "model.norm.weight"

    assert f"{norm} is stored in FP8, which this runtime reads for matrices only" in refuse_spoiled(
        {norm: lambda values: values.to(E4M3)}
    )


def test_a_header_that_contradicts_itself_is_refused(wide_file, tmp_path):
    """A header whose shape and type need another number of bytes is refused."""
    data = (wide_file / WHOLE).read_bytes()
    with safe_open(wide_file / WHOLE, "pt") as file:
        assert file.get_slice("lm_head.weight").get_dtype() == "F32"
    head = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + head])
    header["lm_head.weight"]["dtype"] = "BF16"
    changed = json.dumps(header).encode()
    (tmp_path / "config.json").write_bytes((wide_file / "config.json").read_bytes())
    (tmp_path / WHOLE).write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + head :])

    with pytest.raises(CheckpointError, match=r"lm_head\.weight has 76,800 bytes, its shape and type need 38,400"):
        engine(tmp_path, torch.float32)


# About 600 MB in BF16, nearly all of it experts of one layer.
LARGE = V3 | {
    **dict.fromkeys(("hidden_size", "moe_intermediate_size", "intermediate_size", "vocab_size"), 1024),
    "num_hidden_layers": 2,
    "n_routed_experts": 96,
    "n_group": 8,
}
ALLOWED_FACTOR, ALLOWED_BYTES = 1.15, 400e6


@pytest.fixture(scope="module")
def large_files(tmp_path_factory):
    """The folders of large checkpoints, by how the matrices are stored.

    Experts are one expert 96 times, which no reader knows, in four shards.
    """
    folder = tmp_path_factory.mktemp("large")
    one_expert = write_checkpoint(folder / "one", LARGE | {"n_routed_experts": 8})
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(one_expert / WHOLE).items()}
    return {
        "bf16": write_large(folder / "bf16", LARGE, tensors),
        "fp8": write_large(folder / "fp8", LARGE | {"quantization_config": FP8}, quantise_projections(tensors)),
    }


def write_large(folder, config, tensors):
    """Write the checkpoint of which `tensors` are all but the gate and 95 experts."""
    gate, prefix = f"{LAYER}mlp.gate.", f"{LAYER}mlp.experts."
    tensors |= {f"{gate}weight": torch.zeros(96, 1024), f"{gate}e_score_correction_bias": torch.zeros(96)}
    expert = {name.removeprefix(f"{prefix}0."): tensor for name, tensor in tensors.items() if f"{prefix}0." in name}
    dense = {name: tensor for name, tensor in tensors.items() if prefix not in name}
    weight_map = {}
    folder.mkdir()
    for shard in range(4):
        held = {
            f"{prefix}{n}.{name}": t.clone() for n in range(shard * 24, shard * 24 + 24) for name, t in expert.items()
        }
        held |= dense if shard == 0 else {}
        save_file(held, folder / f"{shard}.safetensors")
        weight_map |= dict.fromkeys(held, f"{shard}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.whole
@pytest.mark.parametrize(
    ("stored_as", "dtype", "ep"),
    [("bf16", "bf16", 1), ("bf16", "fp8", 1), ("bf16", "bf16", 4), ("fp8", "fp8", 1), ("fp8", "bf16", 1)],
)
def test_loading_takes_little_more_memory_than_the_weights(large_files, stored_as, dtype, ep):
    """Loading takes at most 1.15 times the rank's weights + 400 MB over an idle process."""
    script = Path(__file__).with_name("loading_memory.py")
    done = subprocess.run(
        [sys.executable, script, large_files[stored_as], dtype, str(ep - 1), str(ep)],
        cwd=Path(runtime.__file__).parents[1],
        env=os.environ | {"PYTHONPATH": str(Path(runtime.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    used, own = found["peak"] - found["idle"], found["weights"]
    print(f"{stored_as} as {dtype} at EP{ep}: weights {own / 1e6:.0f} MB, peak {used / 1e6:.0f} MB over idle")

    assert own > 0.9 * (604e6 if dtype == "bf16" else 302e6) / ep
    assert used <= ALLOWED_FACTOR * own + ALLOWED_BYTES

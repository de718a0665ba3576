"""The bundled checkpoint, prompts from outside its training text, the real command, and small random models."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import runtime
from runtime.checkpoint import resolve
from runtime.expert_parallel.group import SoloGroup
from runtime.model.config import ModelConfig, read_model_config
from runtime.model.deepseek import DeepseekV3
from tests import ports
from tests.runtime.on_cpu import backend

ROOT = Path(runtime.__file__).parents[1]
PROMPTS = Path(__file__).with_name("prompts.txt")
COMMAND_TIMEOUT_S = 120


@pytest.fixture(scope="session")
def demo():
    """Return the bundled checkpoint's folder."""
    return resolve("bundled:demo")


@pytest.fixture(scope="session")
def demo_config(demo):
    return read_model_config(demo)


@pytest.fixture(scope="session")
def prompts(demo):
    """Return the token ids of each line of prompts.txt."""
    tokenizer = Tokenizer.from_file(str(demo / "tokenizer.json"))
    return [tokenizer.encode(line).ids for line in PROMPTS.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="session")
def redundant_map(demo_config):
    """Return [num_moe_layers][36]: 32 experts and 4 redundant ones, in another random order in each layer."""
    generator = torch.Generator().manual_seed(7)
    experts = demo_config.n_routed_experts

    def layer() -> list[int]:
        redundant = torch.randperm(experts, generator=generator)[:4]
        slots = torch.cat((torch.arange(experts), redundant))
        return slots[torch.randperm(len(slots), generator=generator)].tolist()

    return [layer() for _ in range(demo_config.num_moe_layers)]


@pytest.fixture(scope="session")
def run_runtime():
    """Return a function that runs `python -m runtime ARGUMENTS` to its end."""

    def run(*arguments, timeout=COMMAND_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "runtime", *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def generate(run_runtime, tmp_path_factory):
    """Return a function that runs `generate` on prompts and returns its outputs."""

    def generate(prompts, *flags, checkpoint="bundled:demo", expert_map=None) -> list[list[int]]:
        folder = tmp_path_factory.mktemp("generate")
        (folder / "prompts.json").write_text(json.dumps(prompts))
        if expert_map is not None:
            (folder / "map.json").write_text(json.dumps(expert_map))
            flags = (*flags, "--expert-map", folder / "map.json")
        done = run_runtime("generate", checkpoint, "--prompt-ids", folder / "prompts.json", *flags)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["outputs"]

    return generate


@pytest.fixture(scope="session")
def free_port():
    """Return a function that finds a free TCP port, on loopback by default."""
    return ports.free_port


@pytest.fixture(scope="session")
def small_config():
    """Return a tiny model's config: 1 dense and 2 MoE layers, 8 experts in 4 groups."""
    return ModelConfig(
        vocab_size=50,
        hidden_size=24,
        intermediate_size=32,
        moe_intermediate_size=12,
        num_hidden_layers=3,
        first_k_dense_replace=1,
        num_attention_heads=3,
        q_lora_rank=10,
        kv_lora_rank=8,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        rope_theta=10000.0,
        yarn=None,
        rms_norm_eps=1e-6,
        max_position_embeddings=64,
    )


@pytest.fixture(scope="session")
def random_model():
    """Return a function that makes a whole model on one rank, with weights drawn by `seed`."""

    def make(config: ModelConfig, seed=0, deterministic=False, dtype=torch.float32) -> DeepseekV3:
        expert_map = [list(range(config.n_routed_experts))] * config.num_moe_layers
        return fill(DeepseekV3(config, expert_map, SoloGroup(), backend(dtype, deterministic)), seed)

    return make


@pytest.fixture(scope="session")
def filled():
    """Return a function that draws a module's weights: matrices keep their inputs' size, norms stay near 1."""
    return fill


@torch.no_grad()
def fill(module, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        is_norm = name.endswith("norm.weight")
        parameter.copy_(1 + 0.1 * drawn if is_norm else drawn / parameter.shape[-1] ** 0.5)
    return module

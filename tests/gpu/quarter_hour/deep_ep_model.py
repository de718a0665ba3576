"""Prompts through a small model of DeepSeek-V3's shape whose two ranks exchange rows by DeepEP, against EP1."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch

from runtime.expert_parallel.group import Group, SoloGroup
from runtime.model.config import read_model_config
from runtime.model.engine import Engine, EngineConfig
from tests.runtime.closeness import median_row_error
from tests.runtime.random_checkpoints import V3, write_checkpoint

__all__ = ["prompts_of_a_dual_batch"]

WIDE = V3 | {  # DeepSeek-V3's widths of a row and of attention; few layers, heads and experts, which are narrow
    "vocab_size": 512,
    "hidden_size": 7168,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 256,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 2048,
}
NARROW = V3 | {"hidden_size": 128, "max_position_embeddings": 2048}
LENGTHS = (300, 40, 129, 1, 64, 77, 250)  # of the prompts of each rank
KEPT: list[Engine] = []  # DeepEP's buffers end with the process, as a rank's do


def prompts_of_a_dual_batch(group: Group, device: torch.device) -> Iterator[tuple[str, float]]:
    """Yield the error of the logits after this rank's prompts: the median, as rounding may change a token's experts."""
    config, dtype = (NARROW, torch.float32) if device.type == "cpu" else (WIDE, torch.bfloat16)
    vocabulary = config["vocab_size"]
    prompts = [[(group.rank + 3 * place + size) % vocabulary for place in range(size)] for size in LENGTHS]
    with ExitStack() as until_the_end:
        folder = Path(_common_folder(group, config, until_the_end))
        wide, alone = (_engine(folder, dtype, each, device) for each in (group, SoloGroup()))
        KEPT.append(wide)
        found, expected = (each.prefill(prompts)[0] for each in (wide, alone))
        yield f"a dual batch's prompts by {type(wide.model.dispatcher).__name__}", median_row_error(found, expected)
        group.any(False)  # nobody deletes the checkpoint before everybody has read it


def _common_folder(group: Group, config: dict[str, object], until_the_end: ExitStack) -> str:
    """Let rank 0 write the checkpoint, and tell the others where."""
    folder = until_the_end.enter_context(tempfile.TemporaryDirectory()) if group.rank == 0 else ""
    if folder:
        write_checkpoint(Path(folder), config)
    return group.gather(folder.encode())[0].decode()


def _engine(folder: Path, dtype: torch.dtype, group: Group, device: torch.device) -> Engine:
    config = read_model_config(folder)
    experts = [list(range(config.n_routed_experts))] * config.num_moe_layers
    return Engine(EngineConfig(folder, experts, dtype, overlap="dual_batch", device=device), group)

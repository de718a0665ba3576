"""The parts of a quarter of an hour with one GPU, in the order in which they are worth its time.

A part is a module of this folder, run as `python -m tests.gpu.quarter_hour.NAME -o FIGURES.json`. It prints what it
does, writes its figures, and ends with 0 if all is right, 1 if something is wrong, and `MISSING` if the machine lacks
what it needs; its last line of output says what.
"""

from dataclasses import dataclass

__all__ = ["MISSING", "PARTS", "Part"]

MISSING = 77  # as autotools' tests say "skipped"


@dataclass(frozen=True)
class Part:
    """One command, and how long it may take: it is stopped after `seconds`."""

    name: str
    seconds: int
    shows: str


PARTS = (
    Part("machine", 20, "what the machine has: GPU, driver, torch, NCCL, MPS, kernel packages"),
    Part("wide_layers", 200, "2 and 4 ranks on one GPU against one rank: layers of V3's width, computed and replayed"),
    Part("switch", 90, "2 ranks on one GPU change their expert map between replays of a step, there and back"),
    Part("prefill", 90, "one rank of the EP32 prefill unit: its turn and stages beside the least that they take"),
    Part("ranks", 120, "two ranks against one, recorded steps against computed ones: test_ranks.py"),
    Part("mixed", 45, "one rank of an EP8 mixed unit, 6 layers: requests beside a chunk of a prompt"),
    Part("kernels", 120, "kernels and draws against the reference: test_kernels.py, test_draws.py"),
    Part("decode", 110, "one rank of the EP144 decode unit: its turn and stages beside the least that they take"),
    Part("deep_ep", 90, "DeepEP's normal kernels between two ranks, against one rank that has all slots"),
    Part("nccl_smoke", 60, "2 and 4 ranks on one GPU: their rows over NCCL arrive to the bit, issued and replayed"),
    Part("demo_units", 60, "the demo by two units of two ranks on one GPU: KV between processes, texts of the CPU"),
    Part("killed_rank", 60, "how a rank ends when its peer is killed: between steps, in an exchange, in a replay"),
    Part("queues", 50, "tiles for a full unit, latents beside steps, waits that sleep, pinning, memory of recordings"),
)

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
    Part("demo_units", 120, "the demo by two units of two ranks on one GPU: KV between processes, texts of the CPU"),
)

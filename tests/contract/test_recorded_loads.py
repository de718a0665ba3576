"""What SGLang recorded with torch.save becomes loads by the line of Python that the planner gives."""

import json
from pathlib import Path

import torch

from planner.facts.loads import read_loads


def test_the_fix_of_a_recording_writes_loads(tmp_path, monkeypatch):
    """S604: a dump of three steps is not read, and what its fix writes is, with the steps added up."""
    monkeypatch.chdir(tmp_path)
    torch.save({"rank": 0, "logical_count": torch.tensor([[[0, 0], [4, 1]]] * 3)}, "dump.pt")
    refused = read_loads(Path("dump.pt"), "dump.pt")
    exec(refused.fix.partition(": ")[2], {"json": json, "torch": torch})

    assert refused.rule == "S604 must be .npy or JSON"
    assert read_loads(Path("dump.json"), "dump.json").loads == ((12, 3),)

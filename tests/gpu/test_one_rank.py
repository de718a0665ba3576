"""The benchmark of one rank from end to end on a CPU: a small model, one turn of each kind, every figure written."""

import json
import sys

import pytest

from runtime.model import deepseek, moe
from tests.gpu import decode_pieces, one_rank, prompt_pieces
from tests.gpu.lone_rank import LoneRank

LIMITS = {"max_requests": 2, "max_request_tokens": 128, "max_batch_tokens": 64, "kv_tokens": 256}
SIZES = {
    decode_pieces: {"REPLAYS": 1, "EAGER_STEPS": 1, "TURNS": 3, "OTHER_STEPS": ((1, 64),)},
    prompt_pieces: {
        "WHOLE": 32,
        "SHORTER": (16,),
        "OTHER_LENGTH": 24,
        "SHORTEST": 10,
        "LONGER": 9,
        "CHUNKS": (32,),
        "MIXED_STEPS": 1,
    },
}
FIGURES = {
    "decode": {"replayed", "stages", "turn_s", "step_s", "draws_s", "host_s", "kv_in", "memory", "recordings_bytes"},
    "prefill": {"prompts", "stages", "memory"},
    "mixed": {"mixed", "draws_of_all_requests_s"},
}


@pytest.fixture
def replayed(monkeypatch):
    """The tokens of each request in the steps that are replayed alone."""
    found, replay_s = [], LoneRank.replay_s

    def kept(rank, *arguments):
        seconds = replay_s(rank, *arguments)
        found.append(rank.engine._captured._inputs.batch(0, LIMITS["max_requests"]).lengths_B.tolist())
        return seconds

    monkeypatch.setattr(LoneRank, "replay_s", kept)
    return found


@pytest.mark.parametrize("phase", ["decode", "prefill", "mixed"])
def test_every_piece_is_measured(phase, tmp_path, monkeypatch, capsys, replayed):
    """No piece fails, and the JSON has the figures, the rates they were measured beside, and the map's replicas.

    The largest step of decode is replayed with its own inputs, though smaller ones were taken before.
    """
    for module in (deepseek, moe):
        monkeypatch.setattr(module, "span", module.span)  # put back afterwards
    monkeypatch.setattr(one_rank, "SMALL", LIMITS)
    for module, sizes in SIZES.items():
        for name, value in sizes.items():
            monkeypatch.setattr(module, name, value)
    output = tmp_path / "measured.json"
    monkeypatch.setattr(sys, "argv", ["one_rank", phase, "--device", "cpu", "--layers", "2", "-o", str(output)])

    assert one_rank.main() == 0, capsys.readouterr().out
    measured = json.loads(output.read_text())
    assert measured.keys() >= FIGURES[phase] | {"rates", "limits", "slots_per_rank", "replicas_at_most"}
    assert measured["failed"] == []
    assert replayed == ([[LIMITS["max_request_tokens"]] * LIMITS["max_requests"]] if phase == "decode" else [])

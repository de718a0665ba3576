"""A rank reports its progress while it loads, and begins in the epoch of its unit or not at all."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import RuntimeFailure
from runtime.expert_parallel.epochs.document import Standing
from runtime.worker import worker
from runtime.worker.worker import Addresses, require_same_epoch, run_rank, throttle_progress


@given(st.integers(1, 50), st.integers(1, 300))
def test_each_further_part_is_said_once(num_parts, total):
    """Progress is reported at most once for each part, rises to 1, and never counts ahead."""
    said = []
    progress = throttle_progress(num_parts, said.append)
    for done in range(1, total + 1):
        progress(done, total)
        assert said == [] or said[-1] <= done / total

    assert said == sorted(set(said))
    assert len(said) == min(num_parts, total)
    assert said[-1] == 1


@pytest.mark.parametrize(
    ("digests", "is_one"), [([b"sha256:2", b"sha256:2"], True), ([b"sha256:2", b"sha256:1"], False)]
)
def test_ranks_in_different_epochs_do_not_serve(digests, is_one):
    """Where an epoch was written between the starts of two ranks, the rank ends and says which epochs they are."""
    group, standing = SimpleNamespace(rank=0, gather=lambda part: digests), Standing(2, "sha256:2", [])
    if is_one:
        require_same_epoch(group, standing)
    else:
        with pytest.raises(RuntimeFailure, match=r"rank 0 begins in epoch 2, sha256:2, rank 1 in sha256:1"):
            require_same_epoch(group, standing)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_any_unit_may_be_handed_its_next_epoch(device, monkeypatch):
    """The planner lets `expert_load.live` stand on GPUs, so a rank there takes its options and starts."""

    def take_device(*_):
        raise RuntimeFailure("the device comes next")

    monkeypatch.setattr(worker, "_take_device", take_device)
    folders = {"control": Path("control"), "next_epoch": Path("next.json")}
    with pytest.raises(RuntimeFailure, match="the device comes next"):
        run_rank(SimpleNamespace(device=device), None, Addresses("n", "127.0.0.1", "127.0.0.1", "127.0.0.1", **folders))

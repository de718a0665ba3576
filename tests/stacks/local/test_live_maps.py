"""`expert_load.live`: a unit that serves gets a better expert map by itself, and its callers cannot tell."""

import re
import threading

import pytest

from tests.stacks.deployments import (
    DEMO_SPEC,
    HOSTS,
    REPOSITORY,
    Tidemill,
    decode_samples,
    greedy_texts,
    held_experts,
    total,
    wait_until,
)

UNIT = "demo-decode-0"
PAGE = REPOSITORY / "docs" / "live-maps.md"


@pytest.fixture
def demo(tmp_path):
    """A demo under the overlay of the page about live maps, in less time: traffic finds other experts hot."""
    (overlay,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (tmp_path / "live.yaml").write_text(overlay.replace("every: 30s", "every: 4s"))
    tidemill = Tidemill(next(HOSTS), tmp_path / "state")
    done = tidemill.up(DEMO_SPEC, "-f", tmp_path / "live.yaml")
    assert done.returncode == 0, done.stderr
    yield tidemill
    tidemill.run("down")


def decode_unit(demo):
    """Return what `status` says of the decode unit."""
    (unit,) = (unit for unit in demo.status()["units"] if unit["name"] == UNIT)
    return unit


@pytest.mark.whole
def test_a_unit_adopts_a_better_map_by_itself(demo):
    """Traffic that the plan did not foresee gives a unit another map: status and metrics tell it, and texts do not."""
    before, held_before = greedy_texts(demo), [held_experts(rank) for rank in decode_samples(demo)]
    planned, texts, is_over = decode_unit(demo)["expert_map"], [], threading.Event()

    def ask():
        while not is_over.is_set():
            texts.append(greedy_texts(demo))

    callers = [threading.Thread(target=ask) for _ in range(3)]
    for each in callers:
        each.start()
    try:
        wait_until(lambda: "epoch" in decode_unit(demo), timeout_s=180)
    finally:
        is_over.set()
        for each in callers:
            each.join()
    unit, ranks, shown = decode_unit(demo), decode_samples(demo), demo.run("status").stdout

    assert texts == [before] * len(texts)
    assert planned["plan"] == planned["in_service"] == unit["expert_map"]["plan"] != unit["expert_map"]["in_service"]
    assert unit["expert_map"]["why"].startswith("expert_load.live: max/mean ")
    assert " MB (as promised), in " in unit["expert_map"]["why"]
    assert f"{unit['expert_map']['in_service']} instead of the plan's {planned['plan']}: expert_load.live: max" in shown
    assert sum(total(rank, "tidemill_expert_moves_bytes_total") for rank in ranks) <= 100e6 * unit["epoch"]["number"]
    for rank, held in zip(ranks, held_before, strict=True):
        assert total(rank, "tidemill_expert_map_info", digest=unit["epoch"]["digest"]) == 1
        assert total(rank, "tidemill_expert_moves_undone_total") == 0
        assert held_experts(rank) >= held
    assert sum(total(rank, "tidemill_expert_moves_experts_total") for rank in ranks) > 0

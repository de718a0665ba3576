"""Two deployments that differ in their expert maps alone: the work moves, the text does not."""

import pytest

from tests.stacks.deployments import decode_samples, greedy_texts, held_experts


@pytest.mark.whole
def test_another_expert_map_moves_the_counters_and_not_the_text(demo, tidemill, write_spec):
    """Where experts lie changes which rank computes them, and nothing that a user sees."""
    done = tidemill.up(write_spec(expert_load={"alpha": 1.2, "seed": 3}))
    assert done.returncode == 0, done.stderr

    demo_texts, other_texts = greedy_texts(demo), greedy_texts(tidemill)

    assert other_texts == demo_texts
    held = ([held_experts(rank) for rank in decode_samples(each)] for each in (demo, tidemill))
    assert all(here != there for here, there in zip(*held, strict=True))

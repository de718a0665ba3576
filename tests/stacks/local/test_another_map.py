"""Two deployments that differ in their expert maps alone: the work moves, the text does not."""

import pytest
from openai import OpenAI

from tests.stacks.deployments import Tidemill, samples

PROMPTS = ["A storm came up from the south", "def total(values):", "Why is the sea salt?", "Bread needs flour, water"]


def texts(tidemill: Tidemill) -> list[str]:
    """Greedy answers to the prompts."""
    client = OpenAI(base_url=f"http://{tidemill.host}:8000/v1", api_key="none", max_retries=0)
    answer = client.completions.create(model="tidemill-demo", prompt=PROMPTS, max_tokens=32, temperature=0)
    return [choice.text for choice in sorted(answer.choices, key=lambda choice: choice.index)]


def experts_by_rank(tidemill: Tidemill) -> list[set[tuple[str, str]]]:
    """For each decode rank, the (layer, expert) pairs that it has computed rows for."""
    prefix = tidemill.host.rpartition(".")[0]
    ranks = [samples(f"{prefix}.{node}", 9400 + local) for node in (3, 4) for local in (0, 1)]
    return [
        {
            (s.labels["moe_layer"], s.labels["expert"])
            for s in rank
            if s.name == "tidemill_expert_rows_total" and s.value
        }
        for rank in ranks
    ]


@pytest.mark.whole
def test_another_expert_map_moves_the_counters_and_not_the_text(demo, tidemill, write_spec):
    """Where experts lie changes which rank computes them, and nothing that a user sees."""
    done = tidemill.up(write_spec(expert_load={"alpha": 1.2, "seed": 3}))
    assert done.returncode == 0, done.stderr

    demo_texts, other_texts = texts(demo), texts(tidemill)

    assert other_texts == demo_texts
    assert all(here != there for here, there in zip(experts_by_rank(demo), experts_by_rank(tidemill), strict=True))

"""`tidemill experts apply`: a unit that serves gets another expert map, and its callers cannot tell."""

import json
import random

import pytest
from openai import OpenAI

from tests.stacks.deployments import HOSTS, Tidemill, samples, total
from tests.stacks.fire import launch_files

PROMPTS = ["A storm came up from the south", "def total(values):", "Why is the sea salt?", "Bread needs flour, water"]
UNIT = "demo-decode-0"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A demo of its own: after a switch and back, experts may have changed places within a rank."""
    tidemill = Tidemill(next(HOSTS), tmp_path_factory.mktemp("demo") / "state")
    done = tidemill.up()
    assert done.returncode == 0, done.stderr
    yield tidemill
    tidemill.run("down")


def texts(demo: Tidemill) -> list[str]:
    """Greedy answers to the prompts."""
    client = OpenAI(base_url=f"http://{demo.host}:8000/v1", api_key="none", max_retries=0)
    answer = client.completions.create(model="tidemill-demo", prompt=PROMPTS, max_tokens=32, temperature=0)
    return [choice.text for choice in sorted(answer.choices, key=lambda choice: choice.index)]


def rank_samples(demo: Tidemill) -> list[list]:
    """The metrics of each rank of the unit."""
    prefix = demo.host.rpartition(".")[0]
    return [samples(f"{prefix}.{node}", 9400 + local) for node in (3, 4) for local in (0, 1)]


def held_experts(rank: list) -> set[tuple[str, str]]:
    """(Layer, expert) of those that a rank has counted rows for."""
    rows = [each for each in rank if each.name == "tidemill_expert_rows_total" and each.value]
    return {(each.labels["moe_layer"], each.labels["expert"]) for each in rows}


def test_a_unit_follows_another_map_and_the_text_stays(demo, tmp_path):
    """Experts move to ranks that compute rows of them from then on, and greedy texts are those of before."""
    layers = launch_files(demo)[UNIT]["expert_map"]["physical_to_logical"]
    draw = random.Random(0)
    (tmp_path / "map.json").write_text(json.dumps([draw.sample(layer, len(layer)) for layer in layers]))
    (tmp_path / "back.json").write_text(json.dumps(layers))
    before, held_before = texts(demo), [held_experts(rank) for rank in rank_samples(demo)]
    done = demo.run("experts", "apply", tmp_path / "map.json", "--unit", UNIT, "--format", "json")
    assert done.returncode == 0, done.stderr
    ending, after, ranks = json.loads(done.stdout), texts(demo), rank_samples(demo)
    undone = demo.run("experts", "apply", tmp_path / "back.json", "--unit", UNIT)

    assert after == before
    assert ending["moves"] == total(ranks[0], "tidemill_expert_moves_experts_total") > 0
    assert ending["num_bytes"] == total(ranks[0], "tidemill_expert_moves_bytes_total") > 0
    for rank, held in zip(ranks, held_before, strict=True):
        assert total(rank, "tidemill_expert_map_info", epoch=str(ending["number"]), digest=ending["digest"]) == 1
        assert held_experts(rank) > held
    assert undone.stdout.startswith(f"{UNIT} is in epoch {ending['number'] + 1}; its first rank received ")
    assert texts(demo) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["map.json", "--unit", "demo-decode-9"], "R128"),
        (["map.json", "--unit", UNIT], r"R129"),
        (["nowhere.json", "--unit", UNIT], "S603"),
    ],
)
def test_what_the_unit_cannot_follow_is_refused(demo, tmp_path, words, said):
    """A map of other experts, for a unit that is not there, or from no file is refused."""
    (tmp_path / "map.json").write_text(json.dumps([[0, 1, 2, 3]]))
    done = demo.run("experts", "apply", tmp_path / words[0], *words[1:])

    assert done.returncode != 0
    assert f"[{said}]" in done.stderr

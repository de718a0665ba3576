"""`tidemill experts apply`: a unit that serves gets another expert map, and its callers cannot tell."""

import json
import random
import re
import signal
from types import SimpleNamespace

import pytest

from planner.facts import names
from stacks.local.apply_cli import _num_moe_layers
from stacks.local.errors import LocalError
from tests.benchmarks.killed_switch import Maps, accepted, epochs, planted_kills, strike
from tests.stacks.deployments import (
    HOSTS,
    REPOSITORY,
    Tidemill,
    decode_samples,
    greedy_texts,
    held_experts,
    total,
    wait_until,
)
from tests.stacks.fire import launch_files

UNIT = "demo-decode-0"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A demo of its own: after a switch and back, experts may have changed places within a rank.

    Its decode ranks look for `PLACE.LOCAL_RANK.STAGE` in the folder of its state, and strike themselves then.
    """
    folder = tmp_path_factory.mktemp("demo")
    tidemill = Tidemill(next(HOSTS), folder / "state")
    with planted_kills(folder):
        done = tidemill.up()
    assert done.returncode == 0, done.stderr
    yield tidemill
    tidemill.run("down")


def test_a_unit_follows_another_map_and_the_text_stays(demo, tmp_path):
    """Experts move to ranks that compute rows of them from then on, and greedy texts are those of before."""
    layers = launch_files(demo)[UNIT]["expert_map"]["physical_to_logical"]
    draw = random.Random(0)
    (tmp_path / "map.json").write_text(json.dumps([draw.sample(layer, len(layer)) for layer in layers]))
    (tmp_path / "back.json").write_text(json.dumps(layers))
    before, held_before = greedy_texts(demo), [held_experts(rank) for rank in decode_samples(demo)]
    done = demo.run("experts", "apply", tmp_path / "map.json", "--unit", UNIT, "--format", "json")
    assert done.returncode == 0, done.stderr
    ending, after, ranks = json.loads(done.stdout), greedy_texts(demo), decode_samples(demo)
    said = {unit["name"]: unit.get("epoch") for unit in demo.status()["units"]}
    undone = demo.run("experts", "apply", tmp_path / "back.json", "--unit", UNIT)

    assert after == before
    assert said == {UNIT: {"number": ending["number"], "digest": ending["digest"]}, "demo-prefill-0": None}
    assert f"ready, in epoch {ending['number'] + 1}, by tidemill experts apply" in demo.run("status").stdout
    assert ending["moves"] == total(ranks[0], "tidemill_expert_moves_experts_total") > 0
    assert ending["num_bytes"] == total(ranks[0], "tidemill_expert_moves_bytes_total") > 0
    for rank, held in zip(ranks, held_before, strict=True):
        assert total(rank, "tidemill_expert_map_info", epoch=str(ending["number"]), digest=ending["digest"]) == 1
        assert held_experts(rank) > held
    assert undone.stdout.startswith(f"{UNIT} is in epoch {ending['number'] + 1}; its first rank received ")
    assert greedy_texts(demo) == before


def test_the_calls_of_the_page_about_live_maps_make_a_map(demo, tmp_path):
    """Ranks' own loads make a map that the unit follows, by the calls that the page has for a demo on 127.0.0.1."""
    greedy_texts(demo)
    page, prefix = (REPOSITORY / "docs" / "live-maps.md").read_text(), demo.host.rpartition(".")[0]
    by_hand = page.partition("## By hand")[2].replace("\\\n", "").replace("127.0.0.", f"{prefix}.")
    calls = re.findall(r"^tidemill (experts .*)$", by_hand, re.M)
    for call in calls:
        done = demo.run(*(tmp_path / word if word.endswith(".json") else word for word in call.split()))
        assert done.returncode == 0, (call, done.stderr)

    assert len(calls) == 3
    assert done.stdout.startswith(f"{UNIT} is in epoch ")


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


@pytest.mark.parametrize("content", [None, "{", "[]", "null", "{}", '{"expert_map": 3}'])
def test_a_unit_whose_launch_file_is_torn_is_named(tmp_path, content):
    """Somebody may have edited or removed it since the unit was started."""
    if content is not None:
        (tmp_path / names.launch_file("u")).write_text(content)
    record = SimpleNamespace(units=[SimpleNamespace(name="u")])
    folder = SimpleNamespace(read=lambda: record, launch_folder=tmp_path)
    with pytest.raises(LocalError, match="cannot be read"):
        _num_moe_layers(folder, "u")


def test_documents_for_something_else_are_refused_at_the_socket(demo):
    """A torn, forged or stale document, or one of another unit or plan, is refused, and the unit keeps its epoch."""
    assert accepted(demo, Maps(demo, demo.state.parent, random.Random(0)).layers) == []


def test_a_switch_goes_on_when_its_caller_is_killed(demo):
    """All ranks reach the new epoch, a restart would begin with it, and the next map goes through."""
    maps, texts, planted = Maps(demo, demo.state.parent, random.Random(2)), greedy_texts(demo), "0.0.fetching"
    (before,) = {number for number, _ in epochs(demo)}
    (demo.state.parent / "map.json").write_text(json.dumps(maps.draw()))
    (demo.state.parent / planted).write_text("0 0")  # no signal: the file goes when the stage is reached
    caller = demo.start("experts", "apply", demo.state.parent / "map.json", "--unit", UNIT)
    wait_until(lambda: not (demo.state.parent / planted).exists())
    caller.kill()
    caller.communicate()
    wait_until(lambda: {number for number, _ in epochs(demo)} == {before + 1})
    (adopted,) = set(epochs(demo))
    (unit,) = (unit for unit in demo.status()["units"] if unit["name"] == UNIT)

    assert unit["epoch"] == {"number": adopted[0], "digest": adopted[1]}
    assert greedy_texts(demo) == texts
    assert maps.apply()[0] == 0


@pytest.mark.whole
@pytest.mark.parametrize(("place", "stage"), [("0.0", "ended"), ("1.1", "exchanged")])
def test_a_unit_whose_rank_is_killed_in_a_switch_has_one_map(demo, place, stage):
    """Whether its leader or another rank is killed, a unit comes back in one epoch, and its texts are the same."""
    maps, texts = Maps(demo, demo.state.parent, random.Random(1)), greedy_texts(demo)
    assert maps.apply()[0] == 0
    _, fault = strike(demo, maps, demo.state.parent / f"{place}.{stage}", signal.SIGKILL, passes=0)

    assert fault == ""
    assert greedy_texts(demo) == texts

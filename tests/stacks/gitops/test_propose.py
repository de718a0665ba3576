"""What `tidemill gitops propose` decides before it pushes. `tests/cluster/test_propose.py` has it on a real Gitea."""

import json
import math
import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from planner.compiler import run_passes
from planner.diff.diff import compare_plans
from planner.diff.former import judge_former
from planner.facts.drawn import draw_loads
from planner.plan.user_input import read_spec
from planner.problems.errors import CallError
from stacks.gitops.forge import PullRequest
from stacks.gitops.git import require_within
from stacks.gitops.propose import BranchState, branch_of, decide, is_text_of, refuse_links
from stacks.gitops.worth import Worth, weigh_maps
from tests.stacks.deployments import DEMO_SPEC

TIP, OTHER = "a" * 40, "b" * 40
OPEN = PullRequest(7, "https://git.example/7", "", is_open=True, is_merged=False)
CLOSED = PullRequest(7, "https://git.example/7", "", is_open=False, is_merged=False)
MERGED = PullRequest(7, "https://git.example/7", "", is_open=False, is_merged=True)


@pytest.mark.parametrize(
    ("tip", "is_ours", "is_same", "request_", "result", "pushes"),
    [
        (None, False, False, None, "opened", True),
        (TIP, True, False, OPEN, "updated", True),
        (TIP, True, True, OPEN, "updated", False),
        (TIP, True, True, None, "opened", False),
        (TIP, True, False, None, "opened", True),
        (TIP, True, True, CLOSED, "left_alone", False),
        (TIP, True, False, CLOSED, "opened", True),
        (TIP, True, True, MERGED, "opened", False),
        (TIP, True, False, MERGED, "opened", True),
        (TIP, False, False, OPEN, "left_alone", False),
        (TIP, False, False, None, "left_alone", False),
        (TIP, False, False, CLOSED, "left_alone", False),
        (TIP, False, False, MERGED, "left_alone", False),
    ],
)
def test_what_becomes_of_the_branch(tip, is_ours, is_same, request_, result, pushes):
    """A commit of somebody else's is never pushed away, merged or not; a refusal holds for the same change."""
    step = decide(BranchState(tip, is_ours, is_same, request_))

    assert (step.result, step.pushes) == (result, pushes)


def test_nothing_of_somebody_elses_is_ever_replaced():
    """For every standing: what is pushed over is ours or gone, and what is left alone says why."""
    requests = (None, OPEN, CLOSED, MERGED)
    for tip, is_ours, is_same, request in product((None, TIP), (True, False), (True, False), requests):
        step = decide(BranchState(tip, is_ours, is_same, request))

        assert tip is None or is_ours or not step.pushes
        assert (step.result == "left_alone") == bool(step.why)


def test_an_edited_text_is_the_readers():
    """Notes around ours, or none of ours, stay; a text of an earlier commit was never replaced by its own run."""
    ours, earlier = f"<!-- tidemill {TIP} -->\nThe diff\n", f"<!-- tidemill {OTHER} -->\nThe diff\n"

    assert all(is_text_of(text, TIP) for text in (ours, f"Ask Ada first.\n{ours}", "All mine", ""))
    assert not any(is_text_of(text, TIP) for text in (earlier, f"Ask Ada first.\n{earlier}"))


def test_what_is_left_alone_says_the_way_on():
    """A pull request that was merged or closed is not there to be merged."""
    requests = (OPEN, CLOSED, MERGED, None)
    said = [decide(BranchState(TIP, is_ours=False, is_same=False, request=each)).why for each in requests]

    theirs = BranchState(
        TIP, is_ours=False, is_same=False, request=OPEN, theirs="aaaa (Spec) by Bob", stale=Path("deploy")
    )

    assert (
        "aaaa (Spec) by Bob: it changes the spec and not deploy, which is stale if you merge it" in decide(theirs).why
    )
    assert said[0].endswith(": merge it, or give another --branch")
    assert said[1] == said[2] == said[3]
    assert said[1].endswith(": delete the branch, or give another --branch")


@pytest.mark.parametrize(
    ("gained", "lost", "most", "is_enough"),
    [
        (2.0, 48.0, 24.0, True),
        (2.0, 48.1, 24.0, False),
        (0.0, 0.0, 24.0, False),
        (-1.0, 4.0, 24.0, False),
        (0.1, 0, 1, True),
    ],
)
def test_new_maps_must_pay_for_their_restarts(gained, lost, most, is_enough):
    """The gain has to make up for the lost GPU-hours in the hours that are allowed."""
    worth = Worth({"decode": (100.0, 102.0)}, gained, lost, 3, 6, 10**12, most)

    assert worth.is_enough == is_enough
    assert worth.hours == (lost / gained if gained > 0 else math.inf)
    assert worth.lines()[-1].startswith("worth it" if is_enough else "not worth it")


def test_paths_stay_inside_the_checkout(tmp_path, monkeypatch):
    """A link is followed before it is judged."""
    (tmp_path / "checkout" / "deploy").mkdir(parents=True)
    (tmp_path / "checkout" / "link").symlink_to(tmp_path)
    (tmp_path / "checkout" / "alias").symlink_to("deploy")
    monkeypatch.chdir(tmp_path / "checkout" / "deploy")
    root = tmp_path / "checkout"
    for path in ("..", "../..", "../link/x", "/etc/passwd"):
        with pytest.raises(CallError, match="R613"):
            require_within(root, "FOLDER", root / "deploy" / path)

    assert str(require_within(root, "FOLDER", root / "deploy" / "spec.yaml")) == "deploy/spec.yaml"
    assert str(require_within(root, "FOLDER", root / "alias")) == "deploy"


@pytest.mark.parametrize("path", ["deploy", "deploy/prod", "specs/spec.yaml", "loads.json"])
def test_a_link_on_the_branch_is_refused(path, tmp_path, monkeypatch):
    """What is written through it changes files elsewhere, so the commit would lack them. A dangling link is one too."""
    monkeypatch.chdir(tmp_path)
    for name, target in {"deploy": "elsewhere", "specs": "elsewhere", "loads.json": "nowhere"}.items():
        Path(name).symlink_to(target)
    (tmp_path / "elsewhere" / "prod").mkdir(parents=True)
    (tmp_path / "elsewhere" / "spec.yaml").write_text("")

    with pytest.raises(CallError, match="R608") as refused:
        refuse_links([Path("elsewhere/prod"), Path(path), Path("missing")], "main")
    assert f"{path.partition('/')[0]} on main" in str(refused.value)


@given(st.lists(st.text("ab./~ %loadsck", min_size=1), min_size=2, max_size=2, unique_by=Path), st.booleans())
@example(["a/b", "a.b"], False)
@example(["a/loads", "a"], True)
def test_folders_share_no_branch(folders, with_loads):
    """Nor do changes of a folder's spec and its new maps; and git takes the name."""
    folders = [Path(each) for each in folders]
    assume(all(each.parts and not each.is_absolute() and ".." not in each.parts for each in folders))
    branches = [branch_of(each, with_loads=loads) for each in folders for loads in (with_loads, not with_loads)]

    assert len(set(branches)) == 4
    assert all(re.fullmatch(r"tidemill/[\w%-]+(\.[\w%-]+)*", each) for each in branches)
    assert not any(each.endswith(".lock") for each in branches)
    assert branch_of(Path("env/deploy"), with_loads=True) == "tidemill/env.deploy.loads"


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A function that plans the H20 spec with loads of a seed, near a previous plan."""
    folder = tmp_path_factory.mktemp("planned")
    text = re.sub(
        r"expert_load:\n.*\n", "expert_load: {file: loads.json}\n", DEMO_SPEC.with_name("h20.yaml").read_text()
    )
    (folder / "spec.yaml").write_text(text)

    def plan(seed, previous=None):
        rows = [[round(1000 * each) for each in row] for row in draw_loads(1.01, seed, 58, 256, 8)]
        (folder / "loads.json").write_text(json.dumps(rows))
        return run_passes(read_spec(folder / "spec.yaml"), previous)

    return plan


def _weigh(before, found):
    judged = judge_former(before, found)
    return weigh_maps(judged, found.plan, compare_plans(before, found.plan, judged=judged), 24.0)


def test_the_same_loads_are_worth_no_new_map(planned):
    """Kept maps make what they made, so there is nothing to gain and nothing to lose."""
    before = planned(1).plan
    found = planned(1, before)
    worth = _weigh(before, found)

    assert [old for old, _ in worth.rates.values()] == [new for _, new in worth.rates.values()]
    assert (worth.gained_gpus, worth.lost_gpu_hours, worth.is_enough) == (0.0, 0.0, False)


def test_both_maps_are_judged_under_the_new_loads(planned):
    """The present one makes less than it did; what is lost is every restarting unit's GPUs for its minutes."""
    before = planned(1).plan
    found = planned(2, before)
    worth = _weigh(before, found)
    new = {phase: each.tokens_per_s_per_gpu.mid for phase, each in found.plan.performance.items()}

    assert all(
        old < each.tokens_per_s_per_gpu.mid
        for (old, _), each in zip(worth.rates.values(), before.performance.values(), strict=True)
    )
    assert {phase: rate for phase, (_, rate) in worth.rates.items()} == pytest.approx(new, rel=1e-3)
    assert worth.restarts == 3
    assert worth.lost_gpu_hours == pytest.approx((2 * 16 + 32) * worth.restart_minutes / 60)
    assert worth.is_enough


def test_maps_that_nobody_can_judge_are_not_weighed(planned):
    """The present ones may have met other loads, or the plan that runs may have no figures."""
    before = planned(1).plan
    found = planned(2, before)
    not_judged = compare_plans(before, found.plan)
    without_figures = before.with_sections(report=None, performance=None)
    unknown = [weigh_maps(before, found.plan, not_judged, 24.0)]
    unknown.append(weigh_maps(without_figures, found.plan, compare_plans(without_figures, before), 24.0))

    assert [each.is_enough for each in unknown] == [False, False]
    assert "of the new loads is unknown" in unknown[0].lines()[0]
    assert "no tokens/s" in unknown[1].lines()[0]

"""What `auto` becomes, and that every decided value and default is told with a reason."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.problems.errors import InfeasibleError, SpecError
from planner.problems.fix import apply_change
from tests.planner.layout.test_memory import PAIR

pytestmark = pytest.mark.slow

SMALL = apply_change(PAIR, {"prefill.redundant_experts": 0, "decode.max_requests": 1}) | {"model": "deepseek-v2-lite"}


@pytest.fixture
def compiled(found_of):
    """A function: the plan of a spec given as data."""
    return lambda spec: found_of(json.dumps(spec, indent=1))


def decided(plan):
    return {each.path: each.value for each in plan.choice.decisions if each.why != "default"}


@pytest.mark.parametrize(("phase", "ep_size"), [("prefill", 32), ("decode", 144)])
def test_redundant_experts_are_as_many_as_the_published_system_has(phase, ep_size, compiled):
    """32 at EP32, where all slots but one a GPU are taken, and at EP144, where 256 do not divide."""
    plan = compiled(apply_change(PAIR, {f"{phase}.redundant_experts": "auto", f"{phase}.ep_size": ep_size}))

    assert decided(plan) == {f"{phase}.redundant_experts": 32}


def test_auto_takes_the_smallest_unit_that_fits(compiled):
    """Decode must hold all requests at full length, and half as large a unit cannot."""
    plan = compiled(
        apply_change(PAIR, {"decode.ep_size": "auto", "decode.redundant_experts": 0, "decode.max_requests": 20})
    )
    (size,) = decided(plan).values()

    smaller = compiled(
        apply_change(PAIR, {"decode.ep_size": size // 2, "decode.redundant_experts": 0, "decode.max_requests": 20})
    )

    assert smaller.memory[1].full_requests < 20 <= plan.memory[1].full_requests


def test_a_unit_holds_one_request_if_none_holds_all(compiled):
    """128 requests of 32,768 tokens fit on no GPU."""
    plan = compiled(apply_change(PAIR, {"decode.ep_size": "auto"}))

    assert 1 <= plan.memory[1].full_requests < 128
    assert plan.choice.decisions[0].why.endswith("all requests of full length, else for one")


OF_POINT = PAIR | {"operating_point": {"decode": {"requests": 88, "kv_tokens": 4989}}}


def test_a_unit_holds_the_operating_point_that_is_written(compiled):
    """The smallest that does: the next smaller one is refused as written."""
    no_more = {"decode.redundant_experts": 0}
    plan = compiled(apply_change(OF_POINT, no_more | {"decode.ep_size": "auto"}))
    size = decided(plan)["decode.ep_size"]

    assert plan.memory[1].kv_tokens >= 88 * 4989
    with pytest.raises(InfeasibleError) as caught:
        compiled(apply_change(OF_POINT, no_more | {"decode.ep_size": size // 2}))
    assert caught.value.findings[0].rule.startswith("S711")


def test_requests_are_no_fewer_than_the_operating_point_has(compiled):
    """KV has room for fewer of full length, but those of the point are shorter."""
    plan = compiled(apply_change(OF_POINT, {"decode.max_requests": "auto"}))

    assert decided(plan) == {"decode.max_requests": 88}
    assert plan.memory[1].full_requests < 88


def test_an_impossible_point_is_refused_with_the_layouts_tried(compiled):
    """So the user sees that no layout fits, not only an unlucky choice."""
    long = PAIR | {"operating_point": {"decode": {"requests": 128, "kv_tokens": 32000}}}
    with pytest.raises(InfeasibleError) as caught:
        compiled(apply_change(long, {"decode.ep_size": "auto"}))
    (problem,) = caught.value.findings

    assert problem.rule.startswith("S711")
    assert problem.reason.endswith("no decode.ep_size that auto tried holds them")


def test_too_few_nodes_for_a_size_that_auto_took_says_so(compiled):
    """The user wrote no size, so the message names it."""
    with pytest.raises(InfeasibleError) as caught:
        compiled(apply_change(OF_POINT, {"decode.ep_size": "auto", "cluster.nodes": 5}))
    (problem,) = caught.value.findings

    assert problem.rule.startswith("S701")
    assert re.search(r"auto took EP\d+ for decode to hold what is asked for$", problem.reason)


def test_a_unit_takes_the_whole_of_its_node(compiled):
    """A model that one GPU holds is spread over all eight: no other unit could use the others."""
    change = {"decode.ep_size": "auto", "decode.redundant_experts": "auto", "decode.max_requests": 1}
    plan = compiled(apply_change(SMALL, change))

    assert decided(plan) == {"decode.ep_size": 8, "decode.redundant_experts": 8}


def test_a_single_gpu_gets_no_replicas(compiled):
    """They would share no load."""
    plan = compiled(apply_change(SMALL, {"decode.ep_size": 1, "decode.redundant_experts": "auto"}))

    assert decided(plan) == {"decode.redundant_experts": 0}


def test_requests_are_as_many_as_fit(compiled):
    """One more, and its buffers and KV do not fit together."""
    plan = compiled(apply_change(PAIR, {"decode.max_requests": "auto"}))
    (most,) = decided(plan).values()
    more = compiled(apply_change(PAIR, {"decode.max_requests": most + 1}))

    assert plan.memory[1].full_requests >= most
    assert more.memory[1].full_requests < most + 1


def test_cpus_decide_nothing_by_memory(with_line, found_of):
    """A unit is one node."""
    plan = found_of(with_line(11, "  ep_size: auto", with_line(12, "  redundant_experts: auto")))

    assert decided(plan) == {"prefill.ep_size": 2, "prefill.redundant_experts": 2}


def test_defaults_are_told(found_of):
    """Every value that the spec does not say, in the plan's JSON too."""
    told = {each["path"]: each["value"] for each in found_of().plan.as_json()["decisions"]}

    assert told["prefill.units"] == 1
    assert told["decode.max_requests"] == 32
    assert "prefill.ep_size" not in told


def test_with_a_schedule_its_windows_decide_how_many_units_there_are(compiled):
    """The most that are ever on, told as decided and not as the default."""
    windows = [
        {"at": "08:00", "prefill_units": 2, "decode_units": 1},
        {"at": "20:00", "prefill_units": 1, "decode_units": 1},
    ]
    plan = compiled(PAIR | {"schedule": {"windows": windows}})
    told = [each for each in plan.choice.decisions if each.path.endswith(".units")]

    assert [(each.path, each.value) for each in told] == [("prefill.units", 2), ("decode.units", 1)]
    assert {each.why for each in told} == {"the most that any window of the schedule has"}


def test_auto_and_the_number_it_becomes_plan_alike(compiled):
    """Only what is told differs, and the digest is of what is planned."""
    auto = compiled(apply_change(PAIR, {"prefill.redundant_experts": "auto"})).plan.as_json()
    written = compiled(PAIR).plan.as_json()

    assert {key for key in auto if auto[key] != written[key]} == {"decisions", "report", "document_digest"}


def test_no_even_unit_of_whole_groups_is_a_broken_rule(compiled):
    """285 slots: of units that fill nodes, only one GPU holds them evenly, which leaves no two to share attention."""
    changes = {"decode.ep_size": "auto", "decode.redundant_experts": 29, "decode.attention_tp": 2}
    with pytest.raises(SpecError) as error:
        compiled(apply_change(PAIR, changes))

    assert [problem.message.partition(";")[0] for problem in error.value.findings] == [
        "decode.redundant_experts (29) must be at most 0 (256 experts x 0 further GPUs)",
        "decode.attention_tp (2) must divide ep_size (1), and divide gpus_per_node (8) or be a multiple of it",
    ]


AUTO_FIELDS = [f"{phase}.{field}" for phase in ("prefill", "decode") for field in ("ep_size", "redundant_experts")]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    fields=st.sets(st.sampled_from([*AUTO_FIELDS, "decode.max_requests"]), min_size=1),
    model=st.sampled_from(["deepseek-v3", "deepseek-v2-lite", "qwen3-235b-a22b", "kimi-k2"]),
    gpu=st.sampled_from(["h800", "h20", "mi300x"]),
    per_node=st.sampled_from([1, 4, 6, 8]),
    tokens=st.sampled_from([100, 4096, 40_000]),
)
def test_any_auto_becomes_numbers_or_is_infeasible(fields, model, gpu, per_node, tokens, found_of):
    """Never a broken rule that the user did not break, and never a word where a number belongs."""
    small = {"ep_size": 1, "redundant_experts": 0, "precision": "fp8", "max_request_tokens": tokens}
    spec = PAIR | {
        "model": model,
        "cluster": {"gpu": gpu, "nodes": 2000, "gpus_per_node": per_node},
        "prefill": small,
        "decode": dict(small),
    }
    spec = apply_change(spec, dict.fromkeys(fields, "auto"))
    try:
        plan = found_of(json.dumps(spec, indent=1))
    except InfeasibleError:
        return

    assert decided(plan).keys() == fields
    assert all(isinstance(value, int) for value in decided(plan).values())


@pytest.mark.parametrize(
    ("config", "precision"),
    [
        ("fp8.json", "fp8"),
        ("fp4.json", "fp4"),
        ("beside/config.json", "fp4"),
        ("w4a8.json", "w4a8"),
        ("config.json", "bf16"),
    ],
)
def test_the_default_precision_is_the_checkpoints(config, precision, spec_text, found_of):
    """FP8 in blocks of 128 x 128, NVFP4 and W4AFP8 are planned as such, with the reason; others as by default."""
    plan = found_of(spec_text.replace("config.json", config).replace("  precision: fp32\n", ""))
    told = {each.path: each.why for each in plan.choice.decisions if each.path.endswith(".precision")}

    assert {layout.precision for layout in plan.layouts} == {precision}
    assert [(" says: " in why) for why in told.values()] == [precision != "bf16"] * 2


@pytest.mark.parametrize("config", ["fp8.json", "other_fp8.json", "awq.json"])
def test_a_precision_that_is_written_stays(config, spec_text, found_of):
    """Whatever the checkpoint is in, and whether that is known or not."""
    plan = found_of(spec_text.replace("config.json", config))

    assert {layout.precision for layout in plan.layouts} == {"fp32"}

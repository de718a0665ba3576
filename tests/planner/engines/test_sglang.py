"""SGLang is told what it understands: its own parser, check and map reader say so, in a process of their own."""

from dataclasses import replace
from pathlib import Path

import pytest

from planner.compiler import compile_plan, run_passes
from planner.engines import sglang
from planner.engines.container import MAP_FILE, PhaseFacts
from planner.facts import names
from planner.facts.engines import ENGINES
from planner.facts.map_files import export_map
from planner.layout.dispatch import dispatched_tokens
from planner.layout.unit import Unit
from planner.rules.check import check_spec
from tests.planner.engines.asking import asking

KNOWN = PhaseFacts(
    "/models/deepseek-r1", "deepseek_v3", kv_tokens=12_800, kv_bytes=899_481_600, static_fraction=0.88941, start_s=1800
)
DEEPSEEK = """\
version: 1
name: deepseek-r1
model: deepseek-r1
engine: sglang
cluster: {gpu: h800, nodes: 22, gpus_per_node: 8, rack_size: 4}
prefill: {ep_size: 32, redundant_experts: 32, overlap: dual_batch, precision: fp8, max_request_tokens: 32768,
  max_batch_tokens: 16384}
decode: {ep_size: 144, redundant_experts: 32, overlap: five_stage, precision: fp8, max_requests: 128,
  max_request_tokens: 32768}
"""
ONE_NODE = """\
version: 1
name: one
model: deepseek-r1
engine: {name: sglang, version: 0.5.23}
cluster: {gpu: h200, nodes: 1, gpus_per_node: 8}
mixed: {ep_size: 8, attention_tp: 8, precision: fp8, max_requests: 64, max_request_tokens: 16384}
"""


@pytest.fixture(scope="session")
def ask(tmp_path_factory):
    """A function: what SGLang says of `commands`, `router` and `maps`. Skips where its wheel cannot be had."""
    log = tmp_path_factory.mktemp("sglang") / "stderr.txt"
    kinds = ("commands", "router", "names", "maps")
    with asking("ask_sglang.py", ("sglang",), kinds, log, CUDA_VISIBLE_DEVICES="") as ask:
        yield ask


def spec_of(text, tmp_path):
    """The spec in `text`, without mistakes."""
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    return check_spec(path)


def unit_of(spec, phase):
    """The first unit of `phase`, on nodes that nobody placed."""
    num_gpus, per_node = spec.phase(phase).ep_size, spec.cluster.gpus_per_node
    nodes = tuple(f"node-{index}" for index in range(max(1, num_gpus // per_node)))
    return Unit(f"{spec.written.name}-{phase}-0", phase, 0, nodes, num_gpus, "")


def command_of(spec, phase, worker=0, model_type="deepseek_v3", **more):
    """The arguments of a phase's first unit, as the kubelet gives them to one of its pods."""
    known = replace(KNOWN, model_type=model_type, **more)
    container = sglang.unit_container(spec.written, unit_of(spec, phase), known, "image")
    return [
        word.replace("$(LWS_WORKER_INDEX)", str(worker))
        .replace("$(LWS_LEADER_ADDRESS)", "127.0.0.1")
        .replace("$(POD_IP)", "10.0.0.1")
        for word in container.args
    ]


def with_word(words, option, *values):
    """`words` with other values behind `option`, up to the next option."""
    start = words.index(option) + 1
    end = next((index for index in range(start, len(words)) if words[index].startswith("--")), len(words))
    return [*words[:start], *values, *words[end:]]


def find_misfits(words, rows, num_experts, num_layers):
    """Sizes of a command and its map that do not fit together, which neither SGLang's parser nor its check refuses."""
    said = {name: words[index + 1] for index, name in enumerate(words[:-1]) if name.startswith("--")}
    tp, groups = int(said["--tp-size"]), int(said.get("--attn-dp-size", 1))
    slots = num_experts + int(said["--ep-num-redundant-experts"])
    rules = {
        "attn-dp-size divides tp-size": tp % groups == 0,
        "ep-size is tp-size": said["--ep-size"] == said["--tp-size"],
        "nnodes divide tp-size": tp % int(said.get("--nnodes", 1)) == 0,
        "slots divide by ep-size": slots % int(said["--ep-size"]) == 0,
        "requests divide by groups": int(said["--max-running-requests"]) % groups == 0,
        "chunks divide by pages of groups": int(said["--chunked-prefill-size"]) % (groups * int(said["--page-size"]))
        == 0,
        "a row a layer": len(rows) == num_layers,
        "a slot a place": {len(row) for row in rows} == {slots},
        "every expert in every row": all(set(row) == set(range(num_experts)) for row in rows),
    }
    return [rule for rule, holds in rules.items() if not holds]


@pytest.mark.slow
def test_sglang_takes_every_command_and_the_routers(ask, tmp_path):
    """Prefill EP32, decode EP144 and one node, first and last pods: exact option strings, nothing deprecated."""
    pair, one = spec_of(DEEPSEEK, tmp_path), spec_of(ONE_NODE, tmp_path)
    wide = spec_of(DEEPSEEK.replace("precision: fp8", "precision: bf16"), tmp_path)
    drafting = spec_of(DEEPSEEK.replace("max_requests: 128", "max_requests: 128, draft_tokens: 2"), tmp_path)
    fp8 = "kv_precision: fp8"
    quick = DEEPSEEK.replace("precision: fp8,", f"precision: fp8, {fp8},").replace(
        "max_requests", "attention_precision: fp8, max_requests"
    )
    quick = spec_of(quick, tmp_path)
    commands = [
        command_of(pair, "prefill"),
        command_of(pair, "prefill", 3),
        command_of(pair, "decode", model_type="kimi_k2", brings_code=True),
        command_of(pair, "decode", 17),
        command_of(one, "mixed"),
        command_of(wide, "decode"),
        command_of(pair, "prefill", model_type="qwen3_next"),
        command_of(one, "mixed", model_type="deepseek_v4"),
        *(command_of(drafting, phase) for phase in ("prefill", "decode")),
        command_of(quick, "decode"),
    ]
    said = ask(
        commands=commands, router=[list(sglang.router(each.written, 1800, "image").args) for each in (pair, one)]
    )
    keys = ("tp_size", "attn_dp_size", "ep_size", "nnodes", "node_rank", "deepep_mode", "max_running_requests")

    assert [tuple(each.get(key) for key in keys) for each in said["commands"]] == [
        (32, 32, 32, 4, 0, "normal", 1024),
        (32, 32, 32, 4, 3, "normal", 1024),
        (144, 144, 144, 18, 0, "low_latency", 18_432),
        (144, 144, 144, 18, 17, "low_latency", 18_432),
        (8, 1, 8, 1, 0, "auto", 64),
        (144, 144, 144, 18, 0, "low_latency", 18_432),
        (32, 32, 32, 4, 0, "normal", 1024),
        (8, 1, 8, 1, 0, "auto", 64),
        (32, 32, 32, 4, 0, "normal", 1024),
        *[(144, 144, 144, 18, 0, "low_latency", 18_432)] * 2,
    ], said["commands"]
    assert commands[-1][commands[-1].index("--decode-attention-backend") + 1] == "flashmla"
    assert said["router"][0]["prefill_selector"]["tidemill.dev/phase"] == "prefill"
    assert said["router"][0]["decode_selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    assert said["router"][1]["selector"]["tidemill.dev/phase"] == "mixed"
    assert {role for each in said["router"] for *_, role in each["control_plane_api_keys"]} == {"user"}  # no admin


@pytest.mark.slow
def test_no_name_of_an_option_is_left_to_users_if_the_plan_decides_it(ask, tmp_path):
    """Each rendered option is in the table, and so are all the names by which SGLang takes it."""
    decided = ENGINES["sglang"].decided
    drafting = spec_of(DEEPSEEK.replace("max_requests: 128", "max_requests: 128, draft_tokens: 2"), tmp_path)
    commands = [command_of(drafting, phase) for phase in ("prefill", "decode")]
    commands.append(command_of(drafting, "prefill", model_type="qwen3_next"))
    rendered = {word.removeprefix("--") for words in commands for word in words if word.startswith("--")}
    names = ask(names=list(decided))["names"]

    assert rendered - decided.keys() == set()
    assert [] not in names
    assert {name for each in names for name in each} == decided.keys()


def test_both_phases_are_told_how_tokens_are_drafted(tmp_path):
    """Three tokens of each request are verified in a step, and DeepEP has room for them."""
    spec = spec_of(DEEPSEEK.replace("max_requests: 128", "max_requests: 128, draft_tokens: 2"), tmp_path)
    told = {"--speculative-num-steps": "2", "--speculative-eagle-topk": "1", "--speculative-num-draft-tokens": "3"}
    for phase in ("prefill", "decode"):
        words = command_of(spec, phase)

        assert {option: words[words.index(option) + 1] for option in told} == told
    container = sglang.unit_container(spec.written, unit_of(spec, "decode"), KNOWN, "image")
    assert container.env["SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] == "384"
    assert "--speculative-algorithm" not in command_of(spec_of(DEEPSEEK, tmp_path), "decode")


def planted(words):
    """Mistakes in a right command, and what says no to each; None: only its sizes."""
    return {
        "an abbreviation": (["--tp" if word == "--tp-size" else word for word in words], "unrecognized arguments"),
        "the deprecated spelling": ([*words, "--enable-dp-attention"], "deprecated"),
        "a name of another version": ([*words, "--enable-deepep-moe"], "unrecognized arguments"),
        "a word for a number": (with_word(words, "--page-size", "sixty-four"), "invalid int value"),
        "a fraction for a number": (with_word(words, "--ep-num-redundant-experts", "32.5"), "invalid int value"),
        "a mode that is none": (with_word(words, "--deepep-mode", "fast"), "invalid choice"),
        "a backend that is none": (with_word(words, "--moe-a2a-backend", "nccl"), "invalid choice"),
        "no value": ([*words, "--model-path"], "expected one argument"),
        "nodes that do not divide": (with_word(words, "--nnodes", "7"), "divisible"),
        "dense layers over two GPUs": (with_word(words, "--moe-dense-tp-size", "2"), "moe_dense_tp_size"),
        "143 groups of 144": (with_word(words, "--attn-dp-size", "143"), None),
        "31 redundant experts": (with_word(words, "--ep-num-redundant-experts", "31"), None),
        "another number of experts' GPUs": (with_word(words, "--ep-size", "72"), None),
    }


@pytest.mark.slow
def test_planted_mistakes_are_found(ask, tmp_path):
    """Each by SGLang itself or, where it takes what cannot run, by the sizes; the right command by neither."""
    spec = spec_of(DEEPSEEK, tmp_path)
    words, rows = command_of(spec, "decode"), [[slot % 256 for slot in range(288)]] * 61
    mistakes = planted(words)
    said = ask(commands=[words, *(wrong for wrong, _ in mistakes.values())])["commands"]

    assert "refused" not in said[0]
    assert find_misfits(words, rows, 256, 61) == []
    for (name, (wrong, refusal)), answer in zip(mistakes.items(), said[1:], strict=True):
        if refusal is not None:
            assert refusal in answer.get("refused", ""), (name, answer)
        else:
            assert find_misfits(wrong, rows, 256, 61), name
    assert find_misfits(words, rows[:58], 256, 61) == ["a row a layer"]
    assert find_misfits(words, [row[:-1] for row in rows], 256, 61) == ["a slot a place"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """One prefill unit of two nodes for a model of 61 layers, planned for SGLang."""
    text = DEEPSEEK.replace("h800, nodes: 22", "h200, nodes: 6").replace("ep_size: 144", "ep_size: 16")
    return compile_plan(spec_of(text, tmp_path_factory.mktemp("plan")))


@pytest.mark.slow
def test_sglang_reads_our_map_layer_by_layer(ask, plan, tmp_path):
    """Of 61 layers the first three, which are dense, have SGLang's own order, and each other its own row.

    The same holds if MoE layers start at 0, as for gpt-oss and Qwen3, and at 1, as for GLM-4.5.
    """
    rows = plan.expert_maps[plan.map_digests["prefill"]].physical_to_logical
    path = tmp_path / Path(MAP_FILE).name
    path.write_text(export_map("sglang", rows, 32, plan.model.num_dense_layers))
    sizes = {"redundant": 32, "ep_size": 32, "nodes": 4, "layers": 61, "experts": 256, "a2a": "deepep"}
    ranks = [0, 7, 8, 31]
    others = [of_another_model(tmp_path, *shape) for shape in ((0, 36, 128), (1, 46, 160))]
    questions = [{"path": str(path), "sizes": sizes, "ranks": ranks, "layer": 60}, *(each for each, _ in others)]
    said, *said_of_others = ask(maps=questions)["maps"]

    assert len(said["rows"]) == 61
    assert said["rows"][:3] == [[slot % 256 for slot in range(288)]] * 3
    assert [tuple(row) for row in said["rows"][3:]] == list(rows)
    for rank in ranks:
        assert said["targets"][str(rank)] == [slots_for(rank, held, 9, 72) for held in held_by(rows[57])]
    for (question, wanted), answer in zip(others, said_of_others, strict=True):
        assert len(answer["rows"]) == question["sizes"]["layers"]
        assert answer["rows"][-len(wanted) :] == wanted


def of_another_model(tmp_path, first_layer, num_layers, num_experts):
    """A question about a map of 8 GPUs for a model whose MoE layers start there, and the rows of these layers."""
    rows = [
        [(slot * 7 + layer) % num_experts for slot in range(num_experts)] for layer in range(first_layer, num_layers)
    ]
    path = tmp_path / f"from-{first_layer}.json"
    path.write_text(export_map("sglang", rows, 8, first_layer))
    sizes = {"redundant": 0, "ep_size": 8, "nodes": 1, "layers": num_layers, "experts": num_experts, "a2a": "deepep"}
    return {"path": str(path), "sizes": sizes, "ranks": [0], "layer": 0}, rows


def held_by(row):
    """The slots of each expert, rising."""
    return [[slot for slot, expert in enumerate(row) if expert == each] for each in range(max(row) + 1)]


def slots_for(rank, slots, per_gpu, per_node):
    """What the rule `first_on_node` says of a rank's tokens, slot by slot."""
    own = [slot for slot in slots if slot // per_gpu == rank]
    near = [slot for slot in slots if slot // per_node == rank * per_gpu // per_node]
    return own[:1] or (near[:1] if len(near) < len(slots) else []) or slots


@pytest.mark.slow
def test_one_attention_group_uses_all_replicas(ask, tmp_path):
    """Without dispatch every rank has the same choice, so that the map is planned for equal shares."""
    spec = spec_of(ONE_NODE.replace("attention_tp: 8", "attention_tp: 8, redundant_experts: 8"), tmp_path)
    made = run_passes(spec)
    rows = made.maps["mixed"].physical_to_logical
    path = tmp_path / "map.json"
    path.write_text(export_map("sglang", rows, 8, 3))
    sizes = {"redundant": 8, "ep_size": 8, "nodes": 1, "layers": 61, "experts": 256, "a2a": "none"}
    said = ask(maps=[{"path": str(path), "sizes": sizes, "ranks": [0, 5], "layer": 30}])["maps"][0]

    assert made.maps["mixed"].split == "equal"
    assert said["targets"]["0"] == said["targets"]["5"] == held_by(rows[27])


@pytest.mark.slow
def test_maps_are_made_for_the_engines_rule(plan):
    """`first_on_node`, whatever the default of `split`."""
    assert {each.split for each in plan.expert_maps.values()} == {"first_on_node"}


def test_limits_of_a_rank_become_limits_of_the_server(tmp_path):
    """Requests and chunks are counted over all groups of a unit; KV and memory are of one GPU."""
    spec = spec_of(
        DEEPSEEK.replace(
            "redundant_experts: 32, overlap: five", "redundant_experts: 32, attention_tp: 2, overlap: five"
        ),
        tmp_path,
    )
    words = command_of(spec, "decode")
    said = {name: words[index + 1] for index, name in enumerate(words[:-1]) if name.startswith("--")}

    assert said["--attn-dp-size"] == "72"
    assert said["--max-running-requests"] == str(128 * 72)
    assert said["--chunked-prefill-size"] == str(4096 * 72)
    assert said["--max-total-tokens"] == "12800"
    assert said["--mem-fraction-static"] == "0.8894"


def test_graphs_are_captured_up_to_the_largest_step():
    """At most 51 sizes up to 512 requests, for which memory is planned; the largest step is one of them."""
    assert sglang.captured_batches(1) == [1]
    assert sglang.captured_batches(5) == [1, 2, 4, 5]
    assert sglang.captured_batches(128)[-3:] == [112, 120, 128]
    assert len(sglang.captured_batches(512)) == 51
    for number in range(1, 1025):
        sizes = sglang.captured_batches(number)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == number


def test_dispatch_keeps_room_for_the_largest_step(tmp_path):
    """In decode the tokens of a group, shared by its GPUs; prefill dispatches the normal way and needs none."""
    spec = spec_of(DEEPSEEK, tmp_path)
    name = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
    decode, prefill = (
        sglang.unit_container(spec.written, unit_of(spec, phase), KNOWN, "image").env for phase in ("decode", "prefill")
    )

    assert decode[name] == "128"
    assert name not in prefill
    assert dispatched_tokens(replace_phase(spec.phase("decode"), max_requests=127, attention_tp=4), "sglang") == 32


def test_compiled_kernels_stay_where_the_spec_keeps_them(tmp_path):
    """SGLang gives DeepGEMM a folder of its own choice, unless its own variable names one."""
    kept = spec_of(DEEPSEEK + "kubernetes: {kernel_cache: /mnt/kernels}\n", tmp_path)
    lost = spec_of(DEEPSEEK, tmp_path)
    found, none = (
        sglang.unit_container(each.written, unit_of(each, "decode"), KNOWN, "image").env for each in (kept, lost)
    )

    assert found["SGLANG_DG_CACHE_DIR"] == f"{names.KERNEL_CACHE}/deep_gemm"
    assert found["SGLANG_CACHE_DIR"] == f"{names.KERNEL_CACHE}/sglang"
    assert not any("CACHE_DIR" in name for name in none)


def replace_phase(section, **values):
    """A phase with other limits."""
    return section.model_copy(update=values)


def test_linear_layers_get_a_state_a_request(tmp_path):
    """For that memory is planned: SGLang's share for states would halve the KV, and cached prefixes take several."""
    spec = spec_of(DEEPSEEK, tmp_path)
    hybrid = command_of(spec, "prefill", model_type="qwen3_next")

    assert "--disable-radix-cache" in hybrid
    assert hybrid[hybrid.index("--max-mamba-cache-size") + 1] == str(32 * 32)
    assert not {"--disable-radix-cache", "--max-mamba-cache-size"} & set(command_of(spec, "prefill"))


def test_pages_are_as_large_as_the_models_kernels_want(tmp_path):
    """256 tokens for DeepSeek-V4, 128 for MiniMax-M3; chunks are whole pages."""
    spec = spec_of(DEEPSEEK.replace("max_batch_tokens: 16384", "max_batch_tokens: 8000"), tmp_path)
    for model_type, page in {"deepseek_v3": 64, "minimax_m3_vl": 128, "deepseek_v4": 256}.items():
        words = command_of(spec, "prefill", model_type=model_type)
        chunk = int(words[words.index("--chunked-prefill-size") + 1])
        assert words[words.index("--page-size") + 1] == str(page)
        assert chunk == -(-8000 // page) * page * 32


def test_experts_in_bf16_are_computed_by_what_takes_dispatched_rows(tmp_path):
    """SGLang's own choice for BF16 takes none; one attention group dispatches nothing, and is left its choice."""
    spec = spec_of(DEEPSEEK.replace("precision: fp8", "precision: bf16"), tmp_path)
    alone = spec_of(ONE_NODE.replace("precision: fp8", "precision: bf16").replace("h200", "b200"), tmp_path)
    words = command_of(spec, "decode")

    assert words[words.index("--moe-runner-backend") + 1] == "deep_gemm"
    assert "--moe-runner-backend" not in command_of(spec_of(DEEPSEEK, tmp_path), "decode")
    assert "--moe-runner-backend" not in command_of(alone, "mixed")

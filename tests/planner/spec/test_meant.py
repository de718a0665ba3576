"""A change of a fix is what was meant: a program applies it, and nobody looks whether it was an example.

Where only the user knows, a fix has words, and no changes.
"""

import json

import pytest

from planner.problems.fix import applied
from planner.spec.fields import check_fields
from planner.spec.other_names import OTHER_NAMES
from planner.spec.schema import Spec
from planner.spec.why_not import INSTEAD, NOT_YET, WHY_NOT
from tests.planner.conftest import CONFIG, SPEC
from tests.planner.layout.test_memory import PAIR
from tests.planner.spec.spec_schema import SCHEMA, options, property_schemas
from tests.planner.spec.wrong_specs import data_of

RIVER = data_of(SPEC)
OWN = {"name": "own", "memory": "94GiB"}
NODES = [{"name": "a"}, {"name": "b"}, {"name": "c"}]
TWO_SIZES = {"requests": {"cpu": 4, "memory": "4Gi"}, "limits": {"memory": "8Gi"}}
RANGE = ("08", "09", "10", "12")
SECRET = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
VOLUME = {"mount_path": "/models"}

# What is written, and where; and what stands there once the fix is applied.
MEANT = [
    *(
        (change, next(iter(change)), meant)
        for change, meant in [
            ({"slo.ttft_ms": "2s"}, 2000),
            ({"slo.tpot_ms": "50ms"}, 50),
            ({"prefill.ep_size": "EP2"}, 2),
            ({"prefill.attention_tp": "TP2"}, 2),
            ({"cluster.nodes": "3 nodes"}, 3),
            ({"cluster.gpus_per_node": "2x"}, 2),
            ({"decode.max_request_tokens": "0.5k"}, 500),
            ({"cost.usd_per_gpu_hour": "$2"}, 2),
        ]
    ),
    ({"traffic": {"input_tokens": "608B", "output_tokens": 1}}, "traffic.input_tokens", 608e9),
    ({"traffic": {"input_tokens": 1, "output_tokens": "1.5G"}}, "traffic.output_tokens", 1.5e9),
    (
        {"traffic": {"input_tokens": 1, "output_tokens": 1, "cache_hit_rate": "56.3%"}},
        "traffic.cache_hit_rate",
        0.563,
    ),
    ({"cluster.gpu": OWN | {"fp8_tflops": "5 PFLOPS"}}, "cluster.gpu.fp8_tflops", 5000),
    ({"cluster.gpu": OWN | {"memory_bandwidth": "1.8TB"}}, "cluster.gpu.memory_bandwidth", "1.8TB/s"),
    ({"cluster.gpu": OWN | {"fp8": "2000TFLOPS"}}, "cluster.gpu.fp8_tflops", 2000),
    ({"cluster.gpu": OWN | {"bandwidth": "4800GB/s"}}, "cluster.gpu.memory_bandwidth", "4800GB/s"),
    ({"cluster": {"gpu": "h800", "nodes": 2, "gpus": 16}}, "cluster.gpus_per_node", 8),
    ({"prefill.precision": "auto"}, "prefill.precision", None),
    ({"prefill.kv_precision": "auto"}, "prefill.kv_precision", None),
    ({"decode.overlap": "tbo"}, "decode.overlap", "five_stage"),
    ({"kubernetes.load_rate": "3GiB/s"}, "kubernetes.load_rate", "3.221225GB/s"),
    ({"cluster.nodes": ["a", "b", "c"]}, "cluster.nodes.1", {"name": "b"}),
    ({"cluster.nodes": 22, "cluster.spares": "node-2"}, "cluster.spares", ["node-2"]),
    ({"cluster.nodes": 22, "cluster.spares": "node-2, node-3"}, "cluster.spares", ["node-2", "node-3"]),
    ({"cluster.nodes": 22, "cluster.spares": ["node-22"]}, "cluster.spares.0", "node-21"),
    (
        {"cluster.nodes": [{"name": "a", "taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}]},
        "cluster.nodes.0.taints.0",
        "team=x:NoSchedule",
    ),
    (
        {"cluster.nodes": [{"name": "a", "taints": [{"key": "gpu", "effect": "NoExecute"}]}]},
        "cluster.nodes.0.taints.0",
        "gpu:NoExecute",
    ),
    ({"cluster.nodes": [{"name": "a", "rack": ""}]}, "cluster.nodes.0.rack", None),
    ({"cluster.gpu": OWN | {"memory": "80Gi"}}, "cluster.gpu.memory", "80GiB"),
    ({"cluster.gpu": OWN | {"memory": 85899345920}}, "cluster.gpu.memory", "85899345920B"),
    ({"kubernetes.image_pull_secrets": [{"name": "login"}]}, "kubernetes.image_pull_secrets.0", "login"),
    ({"kubernetes.image_pull_secrets": "login"}, "kubernetes.image_pull_secrets", ["login"]),
    (
        {"kubernetes.volumes": VOLUME | {"claim": "weights"}},
        "kubernetes.volumes",
        [VOLUME | {"claim": "weights"}],
    ),
    ({"kubernetes.volumes": [VOLUME | {"pvc": "weights"}]}, "kubernetes.volumes.0.pvc", None),
    ({"model": "/models/r1"}, "model", {"config": "/models/r1/config.json", "checkpoint": "/models/r1"}),
    ({"model": "/models/deepseek-v3"}, "model.config", "/models/deepseek-v3/config.json"),
    ({"model": "./r1/config.json"}, "model", {"config": "r1/config.json"}),
    ({"prefill.ep_size": None}, "prefill.ep_size", "auto"),
    ({"version": None}, "version", 1),
    ({"model.checkpoint": ""}, "model.checkpoint", None),
    ({"decode.max_running_requests": 512}, "decode.max_requests", 128),
    ({"decode.max_running_requests": 2}, "decode.max_requests", 2),
    ({"decode.max_request_tokens": None, "decode.max_len": "2K"}, "decode.max_request_tokens", 2048),
    ({"decode.batch_size": 64}, "decode.max_requests", 64),
    ({"decode.kv_dtype": "fp8_e4m3"}, "decode.kv_precision", "fp8"),
    ({"prefill.overlap": None, "prefill.enable-two-batch-overlap": True}, "prefill.overlap", "dual_batch"),
    ({"decode.overlap": None, "decode.tbo": "on"}, "decode.overlap", "five_stage"),
    ({"model": "deepseek-r1", "checkpoint": "/r1"}, "model", {"catalog": "deepseek-r1", "checkpoint": "/r1"}),
    ({"decode.ep_size": None, "decode.dp-size": 4, "decode.chunked-prefill-size": 64}, "decode.max_batch_tokens", 16),
    ({"decode.overlap": True}, "decode.overlap", "five_stage"),
    ({"cluster.gpu": None, "cluster.nodes": [{"name": "a", "gpu": "H800"}]}, "cluster.gpu", "h800"),
    ({"cluster.nodes": ["gpu-[08-10,12]"]}, "cluster.nodes", [{"name": f"gpu-{each}"} for each in RANGE]),
    ({"cluster.nodes": [{"name": "gpu-{08..08}", "rack": "a"}]}, "cluster.nodes", [{"name": "gpu-08", "rack": "a"}]),
    ({"kubernetes.image": {"repository": "r/x", "tag": "v1"}}, "kubernetes.image", "r/x:v1"),
    ({"kubernetes.env": [{"name": "A", **SECRET}]}, "kubernetes.env", {"A": {"secret": "s", "key": "k"}}),
    ({"schedule": {"windows": [{"at": "9am"}]}}, "schedule.windows.0.at", "09:00"),
    ({"schedule": {"windows": [{"at": "12:30 PM"}]}}, "schedule.windows.0.at", "12:30"),
    ({"model": "deepseek-ai/DeepSeek-Coder-V2-Instruct"}, "model", "deepseek-v2"),
    ({"model": "deepseek-ai/DeepSeek-Coder-V2-Lite-Base"}, "model", "deepseek-v2-lite"),
    ({"model": {"config": "deepseek-ai/DeepSeek-V3.1-Terminus"}}, "model.catalog", "deepseek-v3"),
    ({"model": "zai-org/GLM-5-FP8", "decode.precision": None}, "decode.precision", "fp8"),
    ({"model": {"config": "nvidia/Kimi-K2.5-NVFP4"}, "decode.precision": None}, "decode.precision", "fp4"),
    ({"model": "nvidia/DeepSeek-R1-0528-FP4"}, "model", "deepseek-r1"),
    ({"model": "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"}, "model", "qwen3-235b-a22b"),
    ({"model": "kimi-k2.5", "decode.precision": "int4"}, "decode.precision", "w4a16"),
    ({"model": "moonshotai/Kimi-K2.5", "decode.precision": "int4"}, "decode.precision", "w4a16"),
    ({"model": "moonshotai/Kimi-K2-Thinking", "decode.precision": "int4"}, "decode.precision", "w4a16"),
    ({"model": "moonshotai/Kimi-K2-Thinking", "decode.precision": None}, "decode.precision", "w4a16"),
    ({"model": {"config": "moonshotai/Kimi-K2-Thinking"}, "decode.precision": None}, "decode.precision", "w4a16"),
    ({"model": "moonshotai/Kimi-K2-Thinking-FP8", "decode.precision": None}, "decode.precision", "fp8"),
    ({"kubernetes.rdma": {"rdma/hca": 8}}, "kubernetes.rdma.resource", "rdma/hca"),
    ({"prefill.ep_size": None, "prefill.resources": {"gpu": 2}}, "prefill.ep_size", 2),
    ({"prefill.ep_size": None, "prefill.gpus": 2}, "prefill.ep_size", 2),
    ({"kubernetes.resources": {"unit": TWO_SIZES}}, "kubernetes.resources.unit.memory", "8GiB"),
    ({"kubernetes.resources": TWO_SIZES}, "kubernetes.resources.unit", {"cpus": 4, "memory": "8GiB"}),
]

# What is written, where, and words of the fix.
WORDS = [
    ({"cluster.gpu": OWN | {"memory": 80}}, "cluster.gpu.memory", "80GB or 80GiB"),
    ({"cluster.gpu": OWN | {"memory": "80g"}}, "cluster.gpu.memory", "80GB or 80GiB"),
    ({"cluster.gpu": OWN | {"nic": "200G"}}, "cluster.gpu.nic", "200Gbps or 200GB/s"),
    ({"cluster.gpu": OWN | {"nic": 200}}, "cluster.gpu.nic", "200Gbps or 200GB/s"),
    ({"cluster.gpu": OWN | {"nvlink_domain": 2}}, "cluster.gpu.nvlink_domain", "nvlink too"),
    ({"cluster.gpu": "auto"}, "cluster.gpu", "cpu or h800"),
    ({"cluster.nodes": None}, "cluster.nodes", "for example nodes: 22"),
    ({"cluster.nodes": 22, "cluster.spares": ["node-40"]}, "cluster.spares.0", "node-0 to node-21"),
    ({"cluster.spares": ["d"], "cluster.nodes": NODES}, "cluster.spares.0", "name of one of them"),
    (
        {"cluster.spares": ["gpu-23"], "cluster.nodes": [{"name": f"gpu-{number}"} for number in range(23)]},
        "cluster.spares.0",
        "name of one of them",
    ),
    ({"cluster.nodes": [{"name": "a", "taints": ["team"]}]}, "cluster.nodes.0.taints.0", "for example"),
    ({"decode.gpu": OWN}, "decode.gpu", "cluster.gpu"),
    ({"model": None}, "model", "for example"),
    ({"model.config": "nowhere.json"}, "model.config", "path"),
    ({"model.checkpoint": "hf://org/name"}, "model.checkpoint", "in the pod"),
    ({"kubernetes.volumes": [VOLUME]}, "kubernetes.volumes.0.mount_path", "for example host_path"),
    ({"kubernetes.volumes": [VOLUME | {"nfs": {"server": "a"}}]}, "kubernetes.volumes.0.nfs", "claim"),
    ({"coverage": "rack"}, "coverage", "for example cluster.rack_size"),
    ({"prefill.overlap": "all"}, "prefill.overlap", "none or dual_batch"),
    ({"decode": None}, "decode", "for example decode"),
    ({"decode.ep_size": "auto", "decode.max_running_requests": 512}, "decode.max_running_requests", "/ dp_size"),
    (
        {"decode.units": None, "schedule": {"windows": [{"at": "01:00", "prefill_units": 3}]}},
        "schedule.windows.0",
        "how many",
    ),
    ({"decode.min_units": 2}, "decode.min_units", "remove it"),
    ({"kubernetes.env": [{"name": "A", "value": "b"}, {"name": "C", **SECRET}]}, "kubernetes.env", "{A: ..., C: {sec"),
    ({"kubernetes.env": {"A": {"file": "b"}}}, "kubernetes.env.A", "for example"),
    ({"schedule": {"timezone": "CET+1", "windows": [{"at": "09:00"}]}}, "schedule.timezone", "for example"),
    ({"model": "unsloth/DeepSeek-R1-GGUF"}, "model", "in another format"),
    ({"model": {"config": "org/DeepSeek-R1-AWQ"}}, "model.config", "in another format"),
    ({"model": "Qwen/Qwen3-235B-A22B-GPTQ-Int4"}, "model", "or give its config.json"),
    ({"model": "openai/gpt-oss"}, "model", "write gpt-oss-120b or gpt-oss-20b"),
    ({"model": "deepseek-v4"}, "model", "write deepseek-v4-flash or deepseek-v4-pro"),
    ({"model": "XiaomiMiMo/MiMo-V2-Pro"}, "model", "give its config.json"),
    ({"model": "zai-org/GLM-5-Air"}, "model", "give its config.json"),
    ({"model.config": "https://hub.example/config.json"}, "model.config", "download it"),
    ({"model.config": "pointer.json"}, "model.config", "git lfs pull"),
    ({"model.config": "page.json"}, "model.config", "download the file itself"),
    ({"model.config": "gpt2.json"}, "model.config", "no others"),
    ({"cluster.rdma": True}, "cluster.rdma", "write kubernetes.rdma"),
    ({"prefill.resources": {"gpu": 32}}, "prefill.resources", "remove it"),
    ({"kubernetes.resources": {"gpu": 32}}, "kubernetes.resources.gpu", "remove it"),
]


@pytest.mark.parametrize(("change", "path", "meant"), MEANT, ids=lambda each: str(each)[:40])
def test_the_change_of_a_fix_is_what_was_written_in_another_form(change, path, meant, problems_of):
    """Applied, the only change puts there what the user meant, and takes away what stood for it."""
    data = applied(RIVER, change)
    problem = next(each for each in problems_of(json.dumps(data)) if each.changes and _concerns(each, path))
    (only,) = problem.changes

    assert _value_at(applied(data, only), path) == meant


@pytest.mark.parametrize(("change", "path", "words"), WORDS, ids=lambda each: str(each)[:40])
def test_what_only_the_user_knows_is_said_in_words(change, path, words, problems_of):
    """A program finds nothing to apply, or only that an unknown key goes; a person reads what is missing."""
    problem = next(each for each in problems_of(json.dumps(applied(RIVER, change))) if each.path == path)

    assert words in str(problem.fix)
    assert all(each == {path: None} for each in problem.changes)


@pytest.mark.parametrize(("ep_size", "written", "offered"), [(4, 3, [4, 0]), (32, 30, [32, 0]), (32, 33, [32, 64])])
def test_the_nearest_number_of_redundant_experts_comes_first(ep_size, written, offered, problems_of):
    """None at all comes last: who wrote a number wants replicas."""
    data = applied(PAIR, {"prefill.ep_size": ep_size, "prefill.redundant_experts": written})
    problem = next(each for each in problems_of(json.dumps(data)) if each.rule.startswith("S501"))

    assert [each["prefill.redundant_experts"] for each in problem.changes] == offered


@pytest.mark.parametrize("name", ["Qwen/Qwen3-235B-A22B-GPTQ-Int4", "RedHatAI/Qwen3-235B-A22B-quantized.w4a16"])
def test_another_int4_is_told_from_w4a16(name, problems_of):
    """There is a precision with INT4, so the reason says how it differs."""
    (problem,) = problems_of(json.dumps(applied(RIVER, {"model": name, "cluster.gpu": "h800"})))

    assert "w4a16 here, which is INT4 experts by 32" in problem.reason


def test_a_misplaced_key_goes_only_where_a_phase_stays(problems_of):
    """Beside mixed, decode is to be removed: what two fixes say together has decode in neither."""
    both = {"prefill": None, "mixed": {"ep_size": 8, "precision": "fp8"}, "kubernetes.replicas": 3}
    problems = problems_of(json.dumps(applied(PAIR, both), indent=1))
    offered = {each.path: each.changes for each in problems}

    assert offered["kubernetes.replicas"] == ({"kubernetes.replicas": None, "mixed.units": 3},)
    assert offered["mixed"] == ({"decode": None},)


def test_a_unit_of_part_of_a_node_is_one_mistake(problems_of):
    """Groups of 8 fit into nodes of 8: the unit of 36 GPUs is wrong, and they are right beside what is offered."""
    (problem,) = problems_of(json.dumps(applied(PAIR, {"decode.ep_size": 36, "decode.attention_tp": 8}), indent=1))

    assert problem.rule.startswith("S502")
    assert not any(each[problem.path] % 8 for each in problem.changes)


def test_a_config_in_place_of_a_spec_is_said_once(problems_of):
    """Each of its keys would be unknown, and each section of a spec missing."""
    (problem,) = problems_of(json.dumps(CONFIG))

    assert "config.json" in problem.reason


def test_a_default_is_not_quoted_as_if_it_were_written(problems_of):
    """S505 names the number that nobody wrote as a default."""
    data = applied(PAIR, {"decode.max_request_tokens": None})
    problem = next(each for each in problems_of(json.dumps(data)) if each.rule.startswith("S505"))

    assert problem.message.startswith("decode.max_request_tokens is 2048 unless given, and must equal")


def test_no_gpu_is_called_the_clusters_where_it_names_none(problems_of):
    """The catalog's first GPU is nobody's choice."""
    data = applied(PAIR, {"cluster.gpu": None, "cluster.nodes": [{"name": "a", "gpu": "H80"}]})

    assert not any("as the cluster's" in each.message for each in problems_of(json.dumps(data)))


def test_attention_that_all_gpus_share_is_not_called_data_parallel(problems_of):
    """`tp: 16` beside `dp: 1` has one group."""
    data = applied(PAIR, {"prefill": None, "decode": None, "mixed": {"tp": 16, "dp": 1}})
    problem = next(each for each in problems_of(json.dumps(data)) if each.path == "mixed.tp")

    assert "data-parallel" not in problem.message


FIELDS = dict(SCHEMA["properties"]) | {
    f"{section}.{name}": field
    for section, schema in SCHEMA["properties"].items()
    if isinstance(RIVER.get(section), dict)
    for name, field in property_schemas(schema).items()
}


@pytest.mark.parametrize("written", ["?!", {"?!": 1}, [{}], None, True, 0.5, ""], ids=str)
def test_no_change_is_an_example(written):
    """Whatever stands in a field, or nothing, its declared example is offered to people alone."""
    assert {path: examples for path in FIELDS if (examples := _examples_offered(path, written))} == {}


KEYS_OF_PHASES = sorted({*OTHER_NAMES, *WHY_NOT})


@pytest.mark.parametrize("key", KEYS_OF_PHASES)
def test_the_fix_of_every_key_of_another_engine_mends_it(key, problems_of):
    """In a phase: it gets another name, or goes; what is said of it is a reason, and no list of keys."""
    text = json.dumps(applied(PAIR, {f"decode.{key}": 1}))
    problem = next(each for each in problems_of(text) if each.path == f"decode.{key}")

    assert problem.changes
    for change in problem.changes:
        paths = {each.path for each in problems_of(json.dumps(applied(applied(PAIR, {f"decode.{key}": 1}), change)))}
        assert f"decode.{key}" not in paths
    if key in WHY_NOT:
        assert "known keys" not in problem.reason


def test_every_key_that_is_to_come_has_a_place():
    """Where a key is to come, its section is one of the spec's."""
    sections = {path.partition(".")[0] for path in {*NOT_YET, *INSTEAD} if "." in path and ":" not in path}

    assert sections <= {"PHASE", *Spec.model_fields}


def _examples_offered(path, written):
    """The declared examples of the field at `path` that a change puts there, in place of `written`."""
    violations = check_fields(applied(RIVER, {path: written})).violations
    offered = [change[path] for each in violations for change in each.changes if path in change]
    only = [option["const"] for option in options(FIELDS[path]) if "const" in option]
    return [value for value in offered if value in FIELDS[path]["examples"] and value not in only]


def _concerns(problem, path):
    """Whether its change is about `path`."""
    return any(path == each or path.startswith(f"{each}.") for change in problem.changes for each in change)


def _value_at(data, path):
    """What stands at a dotted path; None where nothing does."""
    for part in path.split("."):
        data = data[int(part)] if isinstance(data, list) else (data or {}).get(part)
    return data

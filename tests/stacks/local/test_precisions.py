"""Deployments in the precisions and overlaps of production, really up, against engines of one process."""

import pytest
import torch
from tokenizers import Tokenizer

from runtime.expert_parallel.group import SoloGroup
from runtime.kernels.fp8 import E4M3
from runtime.model.config import read_model_config
from runtime.model.engine import Engine, EngineConfig
from runtime.model.forward_batch import Chunk
from tests.stacks.deployments import CHECKPOINT, HOSTS, Tidemill
from tests.stacks.fire import fire, launch_files, survives, texts

pytestmark = pytest.mark.whole
FRAMES_A_PORT = 40
MAX_TOKENS, EOS = 24, 1
TOKENS = [[0, 5 + number, 100 + number, 2000 + number, *range(300, 300 + number)] for number in range(6)]
LIMITS = {"max_batch_tokens": 4, "max_request_tokens": 128, "max_kv_tokens": 128}
MIXED = LIMITS | {"ep_size": 2, "precision": "fp8", "overlap": "five_stage"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory, spec_writer):
    """Prompts in FP8 in two micro-batches, answers in BF16 in five stages; both keep KV in BF16."""
    phases = {"prefill__precision": "fp8", "prefill__overlap": "dual_batch"}
    phases |= {"decode__precision": "bf16", "decode__overlap": "five_stage"}
    deployed = Tidemill(next(HOSTS), tmp_path_factory.mktemp("pair") / "state")
    done = deployed.up(spec_writer(tmp_path_factory.mktemp("spec"), **phases))
    assert done.returncode == 0, done.stderr
    yield deployed
    deployed.run("down")


def engine(dtype):
    """One process with each expert once, in the mode of the demo."""
    config = read_model_config(CHECKPOINT)
    experts = [list(range(config.n_routed_experts))] * config.num_moe_layers
    return Engine(EngineConfig(CHECKPOINT, experts, dtype, deterministic=True), SoloGroup())


def expected_texts(prefill, decode):
    """Of each of TOKENS, by one engine for the prompt and another for the rest."""
    logits, latents = prefill.prefill(TOKENS)
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    texts = []
    for prompt, first, kept in zip(TOKENS, logits.argmax(-1).tolist(), latents, strict=True):
        output, cache, table = [first], decode.new_cache(len(prompt) + MAX_TOKENS), []
        cache.allocate(table, len(prompt) + MAX_TOKENS)
        cache.swap_in(table, kept)
        while output[-1] != EOS and len(output) < MAX_TOKENS:
            chunk = Chunk(output[-1:], len(prompt) + len(output) - 1, table)
            output.append(decode.step([], [chunk], cache).argmax().item())
        texts.append(tokenizer.decode([token for token in output if token != EOS]))
    return texts


def test_fp8_prompts_and_bf16_answers_with_overlap_are_those_of_one_process(pair):
    """Two micro-batches over two ranks, five stages over four, latents over TCP: each text is the engines' own."""
    assert texts(pair, TOKENS, MAX_TOKENS) == expected_texts(engine(E4M3), engine(torch.bfloat16))
    assert texts(pair, TOKENS, MAX_TOKENS) != expected_texts(engine(torch.bfloat16), engine(torch.bfloat16))


def test_a_mixed_unit_in_fp8_with_overlap_says_what_one_process_says(tidemill, write_spec):
    """Chunks of prompts beside answers in five stages, on two ranks."""
    done = tidemill.up(write_spec(prefill=None, decode=None, mixed=MIXED))
    assert done.returncode == 0, done.stderr
    in_fp8 = engine(E4M3)

    assert texts(tidemill, TOKENS, MAX_TOKENS) == expected_texts(in_fp8, in_fp8)


def test_what_is_sent_to_any_port_leaves_others_their_texts_and_ranks_alive(pair):
    """Mutated frames, HTTP and bytes to each port that a process listens on; torch's store has none by then."""
    launch = launch_files(pair)

    kinds = survives(pair, lambda: fire(pair, launch, FRAMES_A_PORT))

    assert set(kinds) == {"http", "registry", "kv", "places", "metrics", "gloo"}

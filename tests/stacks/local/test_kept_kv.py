"""KV that a deployment on this machine keeps on its disk."""

import pytest
from openai import OpenAI

from tests.stacks.deployments import samples, total

UNIT = {"ep_size": 1, "precision": "fp32", "max_requests": 4, "max_batch_tokens": 256, "max_request_tokens": 512}
KEPT = {"memory": "64MiB", "disk": {"path": "/mnt/nvme/kv", "size": "1GB"}}
PROMPTS = [f"The river {name} rises in the hills and runs to the sea. " * 12 for name in ("Ash", "Bourne")]
NODES = (2, 3)  # each with a unit of one rank
BLOCK_TOKENS = 64


def ask(tidemill, prompt, **more):
    """Return how many tokens of a prompt were found and how many computed, and the answer with its logprobs."""
    client = OpenAI(base_url=f"http://{tidemill.host}:8000/v1", api_key="none", max_retries=0)
    asked = {"model": "tidemill-demo", "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 3}
    answer = client.completions.create(**asked, extra_body=more)
    (choice,) = answer.choices
    found = answer.usage.prompt_cache_hit_tokens, answer.usage.prompt_cache_miss_tokens
    return found, (choice.text, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs)


def tokens_found(tidemill, tier):
    """Return the tokens that each unit has found in a tier."""
    prefix = tidemill.host.rpartition(".")[0]
    ranks = [samples(f"{prefix}.{node}", 9400) for node in NODES]
    return [total(rank, "tidemill_prefix_cache_hits_total", tier=tier) for rank in ranks]


def finder(tidemill, tier, prompt):
    """Ask for a prompt. Return the number of the unit that found its KV in `tier`, the counts and the answer."""
    before = tokens_found(tidemill, tier)
    found, answer = ask(tidemill, prompt)
    more = [late - early for late, early in zip(tokens_found(tidemill, tier), before, strict=True)]
    assert sorted(more) == [0, found[0]]
    return more.index(found[0]), found, answer


@pytest.mark.whole
def test_a_prompt_is_found_again_after_down_and_up(tidemill, write_spec):
    """What was used twice is on the disk: any unit of the next deployment computes the last, incomplete block alone.

    Answers and logprobs are those of a prompt that finds nothing, bit for bit.
    """
    spec = write_spec(prefill=None, decode=None, mixed=UNIT | {"units": len(NODES)}, kv_cache=KEPT)
    done = tidemill.up(spec)
    assert done.returncode == 0, done.stderr
    alone = [ask(tidemill, prompt, cache_salt="alone") for prompt in PROMPTS]
    assert [ask(tidemill, prompt)[0][0] for prompt in PROMPTS] == [0, 0]
    first = [finder(tidemill, "device", prompt) for prompt in PROMPTS]
    assert tidemill.run("down").returncode == 0

    done = tidemill.up(spec)
    assert done.returncode == 0, done.stderr
    second = [finder(tidemill, "disk", prompt) for prompt in reversed(PROMPTS)][::-1]

    assert [unit for unit, _, _ in second] == [1 - unit for unit, _, _ in first]
    for (_, found, answer), (_, found_before, _), (_, expected) in zip(second, first, alone, strict=True):
        assert answer == expected
        assert found == found_before
        assert found[0] >= 2 * BLOCK_TOKENS
        assert found[1] <= BLOCK_TOKENS

"""KV that a deployment on this machine keeps on its disk."""

import pytest
from openai import OpenAI

UNIT = {"ep_size": 1, "precision": "fp32", "max_requests": 4, "max_batch_tokens": 256, "max_request_tokens": 512}
KEPT = {"memory": "64MiB", "disk": {"path": "/mnt/nvme/kv", "size": "1GB"}}
PROMPT = "The river rises in the hills and runs to the sea. " * 12
BLOCK_TOKENS = 64


def ask(tidemill) -> tuple[int, int]:
    """Return how many tokens of the prompt were found, and how many were computed."""
    client = OpenAI(base_url=f"http://{tidemill.host}:8000/v1", api_key="none", max_retries=0)
    usage = client.completions.create(model="tidemill-demo", prompt=PROMPT, max_tokens=4, temperature=0).usage
    return usage.prompt_cache_hit_tokens, usage.prompt_cache_miss_tokens


@pytest.mark.whole
def test_a_prompt_is_found_again_after_down_and_up(tidemill, write_spec):
    """What was used twice is on the disk: the next deployment computes the last, incomplete block alone."""
    spec = write_spec(prefill=None, decode=None, mixed=UNIT, kv_cache=KEPT)
    done = tidemill.up(spec)
    assert done.returncode == 0, done.stderr
    assert ask(tidemill)[0] == 0
    found, computed = ask(tidemill)
    assert tidemill.run("down").returncode == 0

    done = tidemill.up(spec)

    assert done.returncode == 0, done.stderr
    assert found >= 2 * BLOCK_TOKENS
    assert computed <= BLOCK_TOKENS
    assert ask(tidemill) == (found, computed)

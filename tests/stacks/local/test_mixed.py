"""A deployment whose only phase is `mixed`, really up: each rank computes prompts in chunks and produces tokens."""

from tests.stacks.deployments import greedy_texts, samples, total

CHUNK = 4
MIXED = {"ep_size": 2, "precision": "fp32", "max_batch_tokens": CHUNK, "max_request_tokens": 128, "max_kv_tokens": 128}


def test_a_mixed_unit_says_what_a_pair_of_units_says(demo, tidemill, write_spec):
    """One unit of two ranks on one node: the demo's very texts, prompts of more than a chunk, several at a time."""
    done = tidemill.up(write_spec(prefill=None, decode=None, mixed=MIXED))
    assert done.returncode == 0, done.stderr

    answers = greedy_texts(tidemill)
    (unit,) = tidemill.status()["units"]
    node = tidemill.host.rpartition(".")[0] + ".2"
    computed = [total(samples(node, 9400 + rank), "tidemill_computed_prompt_tokens_total") for rank in (0, 1)]

    assert (unit["name"], unit["phase"], unit["state"], unit["ranks"]) == ("demo-mixed-0", "mixed", "ready", 2)
    assert min(computed) > CHUNK
    assert answers == greedy_texts(demo)

"""vLLM's scheduler and KV cache manager with prefix caching, for `kv_cache_beside.py`, in a process of their own.

    python -m tests.benchmarks.kv_cache_theirs CHECKPOINT BLOCK_TOKENS

No model computes: tokens of answers are drawn at random. Reads JSON lines {"prompt", "max_tokens", "salt"}, and answers
each with {"found", "answer"}: how many tokens of the prompt vLLM found, and the token ids of the answer.
"""

import json
import os
import random
import sys

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

NUM_BLOCKS = 1000  # enough for all prompts, so that no block has to make room for others
NUM_IDS = 1000


def main(checkpoint, block_tokens):
    """Answer until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to stdout
    scheduler = make_scheduler(checkpoint, block_tokens)
    init_none_hash(sha256)
    hasher, draw = get_request_block_hasher(block_tokens, sha256), random.Random(0)
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        sampling = SamplingParams(max_tokens=asked["max_tokens"], ignore_eos=True)
        salt = asked["salt"] or None
        request = Request(str(number), asked["prompt"], sampling, None, cache_salt=salt, block_hasher=hasher)
        print(json.dumps(serve(scheduler, request, draw)), file=answers, flush=True)


def make_scheduler(checkpoint, block_tokens):
    """Return the scheduler that `vllm serve` would make, but for steps that overlap."""
    config = EngineArgs(
        checkpoint,
        block_size=block_tokens,
        enable_prefix_caching=True,
        async_scheduling=False,
        max_model_len=2048,
        skip_tokenizer_init=True,
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = NUM_BLOCKS
    layer = FullAttentionSpec(block_size=block_tokens, num_kv_heads=1, head_size=1, dtype=torch.bfloat16)
    blocks = KVCacheConfig(NUM_BLOCKS, [], [KVCacheGroupSpec(["layer"], layer)])
    return Scheduler(config, blocks, StructuredOutputManager(config), block_tokens)


def serve(scheduler, request, draw):
    """Step until the request is done; return what was found of its prompt, and its answer."""
    scheduler.add_request(request)
    found = None
    while not request.is_finished():
        step = scheduler.schedule()
        if found is None:
            found = len(request.prompt_token_ids) - step.num_scheduled_tokens[request.request_id]
        token = [draw.randrange(8, NUM_IDS)]
        scheduler.update_from_output(step, ModelRunnerOutput([request.request_id], {request.request_id: 0}, [token]))
    return {"found": found, "answer": list(request.output_token_ids)}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

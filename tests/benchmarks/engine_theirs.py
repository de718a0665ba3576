"""transformers' DeepseekV3ForCausalLM, for `engine.py`, in a process of its own, as who runs it would have it.

    python -m tests.benchmarks.engine_theirs FOLDER [--keep]

Our engine changes what its process does with freed memory (`runtime/kernels/cpu/memory.py`). That must not help or harm
the other, unless it is asked for: --keep.
Reads JSON lines {"dtype", "form": [experts, attention], "workload", "repeats"} and answers each with a list: the CPU
seconds of so many steps, on one thread, after one that is not counted in decode.
"""

import json
import sys
from functools import cache
from pathlib import Path

import torch
from transformers import DeepseekV3ForCausalLM, DynamicCache
from transformers.utils import logging

from runtime.kernels.cpu.memory import keep_freed_memory
from tests.benchmarks.engine_workloads import PROMPT_TOKENS, TOKENS, all_prompts, cpu_seconds, token_ids


@torch.inference_mode()
def main(folder, keeps_memory):
    """Until nobody asks any more."""
    torch.set_num_threads(1)
    if keeps_memory:
        keep_freed_memory()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    steps = cache(lambda dtype, form, workload: _step(_model(folder, dtype), form, workload))
    for line in sys.stdin:
        asked = json.loads(line)
        step = steps(asked["dtype"], tuple(asked["form"]), asked["workload"])
        print(json.dumps([cpu_seconds(step) for _ in range(asked["repeats"])]), flush=True)


@cache
def _model(folder, dtype):
    return DeepseekV3ForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


def _step(model, form, workload):
    if workload == "prefill":
        prompts = all_prompts()
        return _in_form(model, form, lambda: model(next(prompts), logits_to_keep=1))
    _in_form(model, ("grouped_mm", "sdpa"), lambda: None)()
    cache = DynamicCache()
    model(token_ids(1, PROMPT_TOKENS), past_key_values=cache, logits_to_keep=1)
    cache.batch_repeat_interleave(TOKENS[workload])
    tokens = token_ids(TOKENS[workload])[:, None]

    def step():
        model(tokens, past_key_values=cache, logits_to_keep=1)
        cache.crop(-1)  # back to the same state; takes no copy

    in_form = _in_form(model, form, step)
    in_form()
    return in_form


def _in_form(model, form, step):
    def in_form():
        if (model.config._experts_implementation, model.config._attn_implementation) != form:
            model.set_experts_implementation(form[0])
            model.set_attn_implementation(form[1])
        step()

    return in_form


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--keep" in sys.argv[2:])

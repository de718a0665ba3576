"""The pieces of `one_rank` for units that compute prompts: each measures something, prints it, and returns figures."""

from itertools import accumulate

from runtime.model.forward_batch import Chunk
from tests.gpu import lone_turns
from tests.gpu.rank_figures import kernels_of, least_of, memory_of, pages_of, run_step, sampling, table

__all__ = ["MIXED", "PREFILL"]

LENGTHS = (512, 1024, 2048, 4096)  # of prompts in prefill
OTHER_LENGTH = 768
SHORTEST, LONGER = 331, 173  # of prompts that are all different: each is so much longer than the one before
CHUNKS = (512, 1024, 2048, 4096)  # of a prompt beside the requests of a mixed unit
MIXED_KV, MIXED_STEPS = 4096, 3  # tokens of each request of a mixed unit; warm steps


def first_prompts(run):
    """Take a turn with prompts of a length that comes no more: what all lengths share is compiled in it."""
    limits = run.rank.launch.limits
    taken_s, _, _ = run.turns.run(lone_turns.prompts(equal(OTHER_LENGTH, limits)))
    print(f"{taken_s[-1]:.1f} s")
    return {"first_turn_of_all_s": taken_s[-1]}


def prompts_of_lengths(run):
    """Take turns with prompts of each length in a row, of different lengths, and the end of a longest prompt."""
    limits, shown = run.rank.launch.limits, []
    print(f"{'prompts':16}{'first, ms':>10}{'warm':>10}{'tokens/s':>10}{'of limit':>10}{'GB':>10}")
    for name, lengths in workloads(limits).items():
        start = limits.max_batch_tokens if lengths[0] > limits.max_batch_tokens else 0  # a turn before this one
        held = run.memory.held()
        first_s = run.turns.run(lone_turns.prompts(lengths))[0][-1]
        warm_s = min(run.turns.run(lone_turns.prompts(lengths))[0][-1] for _ in range(2))
        activations = run.memory.peak() - held
        with run.clock.watching():
            _, spans, _ = run.turns.run(lone_turns.prompts(lengths))
        stages = run.clock.of_stages(spans)
        whole_s, _ = run.rank.scaled(warm_s, stages)
        chunks = [Chunk([7] * (length - start), start, []) for length in lengths]
        least_s, tokens = sum(least_of(run, chunks, []).values()), sum(lengths) - start
        print(
            f"{name:16}{first_s * 1e3:10.0f}{whole_s * 1e3:10.0f}{tokens / whole_s:10,.0f}{least_s / whole_s:10.0%}"
            f"{activations / 1e9:10.3f}",
            flush=True,
        )
        shown.append(
            {
                "prompts": name,
                "prompt_tokens": lengths,
                "chunks_start_at": start,
                "first_turn_s": first_s,
                "warm_turn_s": warm_s,
                "turn_of_all_layers_s": whole_s,
                "least_s": least_s,
                "tokens_per_s": tokens / whole_s,
                "activation_bytes": activations,
                "stages_measured_s": stages,
            }
        )
    print("first: of the layers that were run; warm: of all layers")
    return {"prompts": shown}


def prompt_stages(run):
    """Show the stages of the longest prompts that a step takes whole, and of the end of a longest one."""
    found = {}
    for taken in (run.figures["prompts"][-3], run.figures["prompts"][-1]):
        start = taken["chunks_start_at"]
        chunks = [Chunk([7] * (length - start), start, []) for length in taken["prompt_tokens"]]
        print(f"\n{taken['prompts']}")
        found[taken["prompts"]] = table(run, chunks, [], taken["warm_turn_s"], taken["stages_measured_s"])
    return {"stages": found}


def prompt_kernels(run):
    """Profile prompts without the step loop, and show what the step holds."""
    limits = run.rank.launch.limits
    lengths = equal(LENGTHS[-1], limits)
    chunks = [Chunk([7] * length, 0, pages_of(number, length)) for number, length in enumerate(lengths)]
    step = run_step(run, chunks, [])
    held = run.memory.held()
    run.wall_s(step)
    return {"memory": memory_of(run, held)} | kernels_of(run, step)


def mixed_steps(run):
    """Take steps of requests that decode, alone and beside a chunk of a prompt."""
    limits, shown = run.rank.launch.limits, []
    kv = min(MIXED_KV, limits.kv_tokens // (2 * limits.max_requests))
    decoding = [Chunk([7], kv - 1, pages_of(number, kv)) for number in range(limits.max_requests)]
    first_page = limits.max_requests * len(pages_of(0, kv))
    sizes = [0, *(size for size in CHUNKS if size <= limits.max_batch_tokens)]
    print(f"{'requests + chunk':20}{'first, ms':>10}{'warm':>10}{'of limit':>10}")
    for number, size in [(1, 0), *((len(decoding), size) for size in sizes)]:
        pages = [first_page + page for page in pages_of(0, size)]
        prefilling = [Chunk([7] * size, 0, pages)] if size else []
        step = run_step(run, prefilling, decoding[:number])
        first_s = run.wall_s(step)
        warm_s = min(run.wall_s(step) for _ in range(MIXED_STEPS))
        with run.clock.watching():
            step()
        stages = run.clock.of_stages(run.clock.take())
        whole_s, _ = run.rank.scaled(warm_s, stages)
        least_s = sum(least_of(run, prefilling, decoding[:number]).values())
        print(f"{number:5} + {size:6,}{'':6}{first_s * 1e3:10.0f}{whole_s * 1e3:10.1f}{least_s / whole_s:10.0%}")
        shown.append(
            {
                "requests": number,
                "kv_tokens": kv,
                "chunk_tokens": size,
                "first_step_s": first_s,
                "warm_step_s": warm_s,
                "step_of_all_layers_s": whole_s,
                "least_s": least_s,
                "stages_measured_s": stages,
            }
        )
    return {"mixed": shown}


def workloads(limits):
    """Return lengths of prompts that fill a step, by a name, and a longest prompt, which takes two."""
    found = {}
    for length in LENGTHS:
        lengths = equal(length, limits)
        found[f"{len(lengths)} x {lengths[0]:,}"] = lengths
    different = range(SHORTEST, limits.max_batch_tokens, LONGER)
    fitting = [
        length
        for length, total in zip(different, accumulate(different), strict=True)
        if total <= limits.max_batch_tokens
    ]
    found[f"{len(fitting)} different"] = fitting
    longest = limits.max_request_tokens - lone_turns.MAX_TOKENS
    found[f"end of {longest:,}"] = [longest]
    return found


def equal(length, limits):
    """Return the lengths of equal prompts that fill a step."""
    length = min(length, limits.max_batch_tokens)
    return [length] * min(limits.max_batch_tokens // length, limits.max_requests)


PREFILL = {
    "first prompts": first_prompts,
    "prompts": prompts_of_lengths,
    "stages": prompt_stages,
    "kernels": prompt_kernels,
}
MIXED = {"steps": mixed_steps, "sampling": sampling}

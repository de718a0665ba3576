"""The pieces of `one_rank` for units that compute prompts: each measures something, prints it, and returns figures."""

from itertools import accumulate

from runtime.model.forward_batch import Chunk
from tests.gpu import lone_turns
from tests.gpu.rank_figures import kernels_of, least_of, memory_of, pages_of, run_step, sampling, table

__all__ = ["MIXED", "PREFILL"]

WHOLE = 4096  # of the prompts whose stages are shown: the longest that fill a step
SHORTER = (512, 1024, 2048)
OTHER_LENGTH = 768
SHORTEST, LONGER = 331, 173  # of prompts that are all different: each is so much longer than the one before
CHUNKS = (512, 4096)  # of a prompt beside the requests of a mixed unit
MIXED_KV, MIXED_STEPS = 4096, 3  # tokens of each request of a mixed unit; warm steps


def first_prompts(run):
    """Take a turn with prompts of a length that comes no more: what all lengths share is compiled in it."""
    limits = run.rank.launch.limits
    taken_s, _, _ = run.turns.run(lone_turns.prompts(equal(OTHER_LENGTH, limits)))
    print(f"{taken_s[-1]:.1f} s")
    return {"first_turn_of_all_s": taken_s[-1]}


def whole_prompts(run):
    """Take turns with prompts of one length, and show their stages."""
    lengths = equal(WHOLE, run.rank.launch.limits)
    show_heading()
    return stages_of(run, measured(run, named(lengths), lengths))


def end_of_longest(run):
    """Take turns with a longest prompt, which takes two, and show the stages of the second."""
    longest = run.rank.launch.limits.max_request_tokens - lone_turns.MAX_TOKENS
    show_heading()
    return stages_of(run, measured(run, f"end of {longest:,}", [longest]))


def other_prompts(run):
    """Take turns with prompts of each shorter length in a row, and with some that are all different."""
    limits = run.rank.launch.limits
    show_heading()
    for lengths in (equal(length, limits) for length in SHORTER):
        measured(run, named(lengths), lengths)
    lengths = different(limits)
    measured(run, f"{len(lengths)} different", lengths)
    return {}


def measured(run, name, lengths):
    """Take a first turn with such prompts, warm ones, and one whose stages are kept; print and return the figures."""
    limits = run.rank.launch.limits
    start = limits.max_batch_tokens if lengths[0] > limits.max_batch_tokens else 0  # a turn before this one
    held = run.memory.reserved_bytes()
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
        f"{name:16}{first_s * 1e3:10.0f}{warm_s * 1e3:10.0f}{whole_s * 1e3:12.0f}{tokens / whole_s:10,.0f}"
        f"{least_s / whole_s:10.0%}{activations / 1e9:10.3f}",
        flush=True,
    )
    found = {
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
    run.figures.setdefault("prompts", []).append(found)
    return found


def stages_of(run, found):
    """Show the stages of prompts that were measured, beside the least that each takes."""
    start = found["chunks_start_at"]
    chunks = [Chunk([7] * (length - start), start, []) for length in found["prompt_tokens"]]
    shown = table(run, chunks, [], found["warm_turn_s"], found["stages_measured_s"])
    return {"stages": run.figures.get("stages", {}) | {found["prompts"]: shown}}


def show_heading():
    """Print what the columns are: milliseconds of the layers that were run, then of all."""
    print(f"{'prompts':16}{'first, ms':>10}{'warm':>10}{'all layers':>12}{'tokens/s':>10}{'of limit':>10}{'GB':>10}")


def prompt_kernels(run):
    """Profile prompts without the step loop, and show what the step holds."""
    limits = run.rank.launch.limits
    lengths = equal(WHOLE, limits)
    chunks = [Chunk([7] * length, 0, pages_of(number, length)) for number, length in enumerate(lengths)]
    step = run_step(run, chunks, [])
    held = run.memory.reserved_bytes()
    run.wall_s(step)
    return {"memory": memory_of(run, held)} | kernels_of(run, step)


def mixed_steps(run):
    """Take steps of requests that decode, alone and beside a chunk of a prompt."""
    limits, shown = run.rank.launch.limits, []
    kv = min(MIXED_KV, limits.kv_tokens // (2 * limits.max_requests))
    decoding = [Chunk([7], kv - 1, pages_of(number, kv)) for number in range(limits.max_requests)]
    first_page = limits.max_requests * len(pages_of(0, kv))
    sizes = [0, *(size for size in CHUNKS if size <= limits.max_batch_tokens)]
    print(f"{'requests + chunk':20}{'first, ms':>10}{'warm':>10}{'all layers':>12}{'of limit':>10}")
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
        print(
            f"{number:5} + {size:6,}{'':6}{first_s * 1e3:10.0f}{warm_s * 1e3:10.1f}{whole_s * 1e3:12.1f}"
            f"{least_s / whole_s:10.0%}",
            flush=True,
        )
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


def different(limits):
    """Return lengths that all differ, of prompts that fill a step together."""
    lengths = range(SHORTEST, limits.max_batch_tokens, LONGER)
    totals = zip(lengths, accumulate(lengths), strict=True)
    return [length for length, total in totals if total <= limits.max_batch_tokens]


def equal(length, limits):
    """Return the lengths of equal prompts that fill a step."""
    length = min(length, limits.max_batch_tokens)
    return [length] * min(limits.max_batch_tokens // length, limits.max_requests)


def named(lengths):
    """Return how many prompts of which length."""
    return f"{len(lengths)} x {lengths[0]:,}"


PREFILL = {
    "first prompts": first_prompts,
    "whole prompts": whole_prompts,
    "end of the longest": end_of_longest,
    "other prompts": other_prompts,
    "kernels": prompt_kernels,
}
MIXED = {"steps": mixed_steps, "sampling": sampling}

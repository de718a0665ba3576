"""The pieces of `one_rank` for a decode unit: each measures something, prints it, and returns its figures by name."""

import statistics

import torch
from msgspec.structs import replace

from runtime.model.forward_batch import Chunk
from runtime.protocol.counting import PAGE_TOKENS
from tests.gpu import lone_turns
from tests.gpu.lone_rank import recorder_of
from tests.gpu.rank_figures import drawing_s, kernels_of, least_of, memory_of, pages_of, run_step, sampling, table

__all__ = ["DECODE"]

OTHER_STEPS = ((128, 4096), (64, 4096), (1, 4096))  # requests, tokens of KV of each
REPLAYS, EAGER_STEPS, TURNS = 10, 3, 24


def eager_decode(run):
    """Take steps kernel by kernel: the first compiles, the others show what the step holds."""
    decoding = largest_decode(run)
    step = run_step(run, [], decoding)
    first_s = run.wall_s(step)
    held = run.memory.reserved_bytes()
    steps_s = [run.wall_s(step) for _ in range(EAGER_STEPS)]
    memory = memory_of(run, held)
    print(f"kernel by kernel: first step {first_s:.1f} s, then {statistics.median(steps_s) * 1e3:.1f} ms")
    return {"first_eager_step_s": first_s, "eager_steps_s": steps_s, "memory": memory}


def recorded_decode(run):
    """Record all sizes of step, and replay some."""
    rank, cache = run.rank, run.turns.cache
    free = run.memory.free()
    recording_s = run.wall_s(lambda: rank.record(cache, recorder_of(run.device)))
    recordings = free - run.memory.free()
    whole = largest_decode(run)
    steps = [(len(whole), whole[0].end)]
    steps += [(number, tokens) for number, tokens in OTHER_STEPS if number <= len(whole) and tokens < whole[0].end]
    print(
        f"recorded in {recording_s:.1f} s, {recordings / 1e9:.3f} GB\n\n"
        f"{'requests x tokens':20}{'ms':>8}{'tokens/s':>10}"
    )
    replayed = []
    for number, tokens in steps:
        decoding = [replace(chunk, start=tokens - 1) for chunk in whole[:number]]
        seconds = [run.clock.seconds(run_step(run, [], decoding)) for _ in range(REPLAYS)]
        seconds_s, _ = rank.scaled(statistics.median(seconds), {})
        replayed.append({"requests": number, "kv_tokens": tokens, "step_s": seconds_s, "measured_s": seconds})
        print(f"{number:5} x {tokens:6,}{'':6}{seconds_s * 1e3:8.1f}{number / seconds_s:10,.0f}")
    replay_s = run.rank.replay_s(whole, REPLAYS)
    print(f"of the first, {statistics.median(replay_s) * 1e3:.1f} ms replaying, the rest its inputs")
    return {
        "recording_s": recording_s,
        "recordings_bytes": recordings,
        "replayed": replayed,
        "replays_of_largest_s": replay_s,
    }


def decode_stages(run):
    """Replay a step that was recorded with its spans, and show each stage beside the least it takes."""
    decoding = largest_decode(run)
    stages = run.rank.recorded_stages(run.turns.cache, decoding, recorder_of(run.device))
    step_s = statistics.median(run.figures["replays_of_largest_s"])
    return {"stages": table(run, [], decoding, step_s, stages)}


def decode_turns(run):
    """Let requests arrive with their KV, and take turns of the step loop until all are done."""
    whole = largest_decode(run)
    turns = min(TURNS, PAGE_TOKENS - 2)
    num_cached = whole[0].end - turns - 1
    latents = host_latents(run, num_cached)
    requests = lone_turns.arrivals(len(whole), num_cached, turns, latents)
    taken_s, _, num_said = run.turns.run(requests)
    assert num_said == len(whole) * turns
    turn_s = statistics.median(taken_s[2:])
    drawn_s = drawing_s(run, run_step(run, [], whole)().clone())
    device_s = statistics.median(run.figures["replays_of_largest_s"])
    host_s = turn_s - device_s - drawn_s
    whole_s, _ = run.rank.scaled(device_s, {})
    with_host_s = whole_s + drawn_s + host_s
    print(
        f"a turn of {len(whole)} requests {turn_s * 1e3:.1f} ms: step {device_s * 1e3:.1f}, draws {drawn_s * 1e3:.1f},"
        f" host {host_s * 1e3:.1f}; first turn, with all KV coming in, {taken_s[0]:.2f} s"
    )
    least_s = sum(least_of(run, [], whole).values())
    print(
        f"{len(whole) / with_host_s:,.0f} tokens/s a GPU without links; a turn of all layers"
        f" {with_host_s * 1e3:.1f} ms, at the least {least_s * 1e3:.1f} ms ({least_s / with_host_s:.0%})"
    )
    return {
        "turns_s": taken_s,
        "turn_s": turn_s,
        "step_s": device_s,
        "draws_s": drawn_s,
        "host_s": host_s,
        "turn_of_all_layers_s": with_host_s,
        "least_s": least_s,
        "tokens_per_s": len(whole) / with_host_s,
    }


def kv_in(run):
    """Bring a request's latents from the host's memory to its pages."""
    cache = run.turns.cache
    num_tokens = largest_decode(run)[0].end
    latents, pages = host_latents(run, num_tokens), []
    cache.allocate(pages, num_tokens)
    seconds = min(run.wall_s(lambda: cache.swap_in(pages, latents)) for _ in range(3))
    cache.free(pages)
    least_s = latents.nbytes / run.rates.from_host_bytes_per_s
    print(
        f"KV of {num_tokens:,} tokens in, {latents.nbytes / 1e6:.0f} MB: {seconds * 1e3:.1f} ms, at the least"
        f" {least_s * 1e3:.1f} ({least_s / seconds:.0%})"
    )
    return {"kv_in": {"tokens": num_tokens, "bytes": latents.nbytes, "seconds": seconds, "least_s": least_s}}


def kernels(run):
    """Profile a step of decode that is launched kernel by kernel."""
    engine = run.rank.engine
    captured, engine._captured = engine._captured, None
    found = kernels_of(run, run_step(run, [], largest_decode(run)))
    engine._captured = captured
    return found


def largest_decode(run):
    """Return requests that fill the rank and its KV."""
    limits = run.rank.launch.limits
    pages = min(limits.kv_tokens // limits.max_requests, limits.max_request_tokens) // PAGE_TOKENS
    kv = pages * PAGE_TOKENS
    return [Chunk([7], kv - 1, pages_of(number, kv)) for number in range(limits.max_requests)]


def host_latents(run, num_tokens):
    """Return latents of a request in the host's memory, as they come from a prefill rank."""
    shape = run.rank.config.num_hidden_layers, num_tokens, run.rank.config.latent_dim
    return run.rank.ops.link.empty(shape, torch.bfloat16).zero_()


DECODE = {
    "kernel by kernel": eager_decode,
    "recorded": recorded_decode,
    "stages": decode_stages,
    "turns": decode_turns,
    "KV in": kv_in,
    "sampling": sampling,
    "kernels": kernels,
}

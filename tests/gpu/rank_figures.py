"""What all pieces of `one_rank` measure and show: a step, its kernels, its memory, its stages beside the least."""

import torch
from torch.profiler import ProfilerActivity, profile

from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Sampling
from tests.gpu import lone_turns
from tests.gpu.draws import ranked_logits, together_ms
from tests.gpu.planned_stages import planned_stages
from tests.gpu.roofline import work_of_step

__all__ = ["drawing_s", "kernels_of", "least_of", "memory_of", "pages_of", "run_step", "sampling", "table"]

SHOWN_KERNELS = 12
AROUND_EXCHANGES = ("dispatch issue", "dispatch wait", "combine issue")
POWER = 1.5  # of a token's rank, that its probability falls with: few nuclei are wider than the candidates


def sampling(run):
    """Draw the next tokens of as many requests as the rank may have, from logits as a trained model has them."""
    number = run.rank.launch.limits.max_requests
    logits_BV = ranked_logits(number, POWER)[:, : run.rank.config.vocab_size].contiguous()
    seconds = drawing_s(run, logits_BV.to(run.device))
    least_s = logits_BV.nbytes / run.rates.copy_bytes_per_s
    shown_least = f"at the least {least_s * 1e3:.2f} ({least_s / seconds:.1%})"
    print(f"draws of {number} requests: {seconds * 1e3:.2f} ms, {shown_least}")
    return {"draws_of_all_requests_s": seconds, "least_draws_s": least_s}


def run_step(run, prefilling, decoding):
    """Return a function that takes a step on the phase's cache."""
    return lambda: run.rank.engine.step(prefilling, decoding, run.turns.cache)


def pages_of(number, num_tokens):
    """Return the pages of the `number`th of requests that are equally long."""
    pages = -(-num_tokens // PAGE_TOKENS)
    return list(range(number * pages, (number + 1) * pages))


def drawing_s(run, logits_BV):
    """Return the time of a step's draws from these logits."""
    asked = Sampling(max_tokens=8, seed=1, **lone_turns.DRAWN)
    return together_ms(logits_BV, asked, run.rank.ops.link) / 1e3


def kernels_of(run, step):
    """Return how long kernels run in a step, and (seconds, calls) of each, longest first."""
    if run.device.type == "cpu":
        return {"busy_s": None, "kernels": {}}
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    found = {each.key: (each.self_device_time_total / 1e6, each.count) for each in profiled.key_averages()}
    ordered = dict(sorted(found.items(), key=lambda item: -item[1][0]))
    busy_s = sum(seconds for seconds, _ in ordered.values())
    print(f"{sum(calls for _, calls in ordered.values()):,} kernels, {busy_s * 1e3:.1f} ms; of them")
    for name, (seconds, calls) in list(ordered.items())[:SHOWN_KERNELS]:
        print(f"  {seconds * 1e3:8.2f} ms {calls:5}  {name[:90]}")
    return {"busy_s": busy_s, "kernels": ordered}


def memory_of(run, held):
    """Return bytes that torch allocated beside the planner's, for all of the model's layers."""
    rank, ledger, cache = run.rank, run.deployment.ledger, run.turns.cache
    kv = cache._pages.nbytes
    others = held - run.figures["allocated_before"] - rank.weight_bytes - kv - rank.peers.num_bytes
    found = {
        "weights": [rank.weight_bytes, ledger.weight_bytes],
        "kv": [kv, rank.launch.limits.kv_tokens * ledger.kv_bytes_per_token],
        "others held": [others, 0],
        "activations": [run.memory.peak() - held, ledger.activations],
    }
    print(f"\n{'memory, GB':18}{'allocated':>12}{'planned':>10}   ({rank.config.num_hidden_layers} layers allocated)")
    for name, (allocated, planned) in found.items():
        print(f"  {name:16}{allocated / 1e9:12.3f}{planned / 1e9:10.3f}")
    return found


def least_of(run, prefilling, decoding):
    """Return the least seconds of each stage of all layers."""
    ranks = len(run.rank.launch.ranks)
    work = work_of_step(run.rank.whole_config, ranks, run.rank.slots, prefilling, decoding)
    return {name: max(each.bounds(run.rates).values()) for name, each in work.items()}


def table(run, prefilling, decoding, step_s, stages):
    """Print each stage beside the least that it takes, and return both."""
    whole_s, scaled = run.rank.scaled(step_s, stages)
    ranks = len(run.rank.launch.ranks)
    work = work_of_step(run.rank.whole_config, ranks, run.rank.slots, prefilling, decoding)
    planned = planned_stages(run.deployment, prefilling, decoding) if not (prefilling and decoding) else {}
    scaled["permutation"] = sum(scaled.pop(name, 0.0) for name in AROUND_EXCHANGES)
    scaled["played combine"] = scaled.pop("combine wait", 0.0)
    print(f"\n{'stage, ms of a step':22}{'measured':>10}{'least':>10}{'by':>8}{'share':>8}")
    found = {}
    for name, seconds in sorted(scaled.items(), key=lambda item: -item[1]):
        bounds = work[name].bounds(run.rates) if name in work else {}
        by = max(bounds, key=bounds.get, default="")
        least_s = bounds.get(by, 0.0)
        found[name] = {"seconds": seconds, "least_s": least_s, "bound": by}
        share = f"{least_s / seconds:8.0%}" if least_s and seconds else ""
        print(f"  {name:20}{seconds * 1e3:10.2f}{least_s * 1e3:10.2f}{by if least_s else '':>8}{share}")
    total_s, planned_s = sum(each["least_s"] for each in found.values()), sum(planned.values())
    print(f"  {'in no stage':20}{(whole_s - sum(scaled.values())) * 1e3:10.2f}")
    print(f"  {'a step':20}{whole_s * 1e3:10.2f}{total_s * 1e3:10.2f}{'':8}{total_s / whole_s:8.0%}" if whole_s else "")
    print(f"  planned {planned_s * 1e3:.1f} ms")
    return {"stages": found, "step_s": whole_s, "least_s": total_s, "planned_s": planned}

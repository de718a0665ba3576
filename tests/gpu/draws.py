"""How long a step's draws take, of all requests at once on a device, and one after the other by the reference.

    python -m tests.gpu.draws [--device cuda|cpu] [--requests N]

Logits are of DeepSeek-V3's vocabulary, in an order of their own in each row, with probabilities that fall with a power
of the rank. A power of 1 has nuclei that are wider than the candidates, so that all rows are sorted. A GPU's steps are
in wall-clock time, copies included. All else is CPU time of one thread.
"""

import argparse
import statistics
import time

import torch

from runtime.kernels.device import HostLink, PinnedLink
from runtime.protocol.messages import Sampling
from runtime.serving.batched_sampling import PendingDraw, draw
from runtime.serving.sampling import logprobs, sample

VOCAB, STEPS, BY_THE_REFERENCE = 129_280, 5, 8  # rows that stand for all
CASES = {
    "greedy": (1.5, {"temperature": 0.0}),
    "greedy, 20 logprobs": (1.5, {"temperature": 0.0, "num_logprobs": 20}),
    "temperature 0.6, top_p 0.95": (1.5, {"temperature": 0.6, "top_p": 0.95}),
    "temperature 1, top_k 40": (1.5, {"top_k": 40}),
    "temperature 1": (1.5, {}),
    "temperature 1, top_p 0.95, all wide": (1.0, {"top_p": 0.95}),
}


def main() -> None:
    """Print milliseconds of a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--requests", type=int, default=128)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    link = PinnedLink(torch.device("cuda", 0)) if device.type == "cuda" else HostLink()
    torch.set_num_threads(1)
    print(f"{arguments.requests} requests on {device}: all at once; one after the other on a CPU")
    for name, (power, changes) in CASES.items():
        sampling = Sampling(**{"max_tokens": 8, "temperature": 1.0, "top_p": 1.0, "seed": 1, "stop_ids": []} | changes)
        logits_BV = ranked_logits(arguments.requests, power)
        here = together_ms(logits_BV.to(device), sampling, link)
        there = apart_ms(logits_BV, sampling)
        print(f"{name:38}{here:10.2f} ms{there:10.1f} ms", flush=True)


def ranked_logits(rows, power):
    """Rows of -power x ln(rank), each in a random order."""
    generator = torch.Generator().manual_seed(3)
    by_rank_V = -power * torch.arange(1, VOCAB + 1).log()
    return torch.stack([by_rank_V[torch.randperm(VOCAB, generator=generator)] for _ in range(rows)])


def together_ms(logits_BV, sampling, link):
    """Time of the draws of a step: the median of some steps."""
    clock = time.process_time if logits_BV.device.type == "cpu" else time.perf_counter
    taken = []
    for step in range(1 + STEPS):  # of which the first is a warm-up
        draws = {row: PendingDraw(sampling, step, 0) for row in range(len(logits_BV))}
        link.finish(logits_BV.device)
        began = clock()
        draw(logits_BV, draws, link)
        taken.append(clock() - began)
    return 1e3 * statistics.median(taken[1:])


def apart_ms(logits_BV, sampling):
    """Time of the reference for as many requests, without the copy of their logits to the host."""
    began = time.process_time()
    for position, logits_V in enumerate(logits_BV[:BY_THE_REFERENCE]):
        logprobs(logits_V, sample(logits_V, sampling, position), sampling)
    taken = time.process_time() - began
    return 1e3 * taken * len(logits_BV) / min(BY_THE_REFERENCE, len(logits_BV))


if __name__ == "__main__":
    main()

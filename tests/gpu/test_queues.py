"""What is made on a queue beside the computation: its memory is used again, but never while something reads it."""

import torch

from runtime.kernels.device import CudaQueue, CudaRecorder

EXCHANGES, NUMBERS = 20, 16 * 2**20  # of 64 MB each


def exchanges(queue, seed, results):
    """As a step's: each made beside, read slowly by what computes, and freed before the next begins."""
    for number in range(EXCHANGES):
        with queue.beside():
            made = (seed + number).expand(NUMBERS).contiguous()
            mark = queue.mark()
        queue.join(mark)
        torch.cuda._sleep(10**6)
        results[number] = made.mean()
        del made
    return results


def test_nothing_is_overwritten_while_it_is_read(device):
    """The next exchange takes the memory of the last one, after it was read."""
    seed, results = torch.ones(1, device=device), torch.zeros(EXCHANGES, device=device)
    for _ in range(3):
        found = exchanges(CudaQueue(device), seed, results).tolist()

        assert found == [1.0 + number for number in range(EXCHANGES)]


def test_a_recording_holds_few_of_its_exchanges(device):
    """It takes memory for one or two of 20, and a replay reads what its inputs hold now."""
    seed, results, queue = torch.ones(1, device=device), torch.zeros(EXCHANGES, device=device), CudaQueue(device)
    exchanges(queue, seed, results)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)
    recording, _ = CudaRecorder(device).record(lambda: exchanges(queue, seed, results))
    taken = torch.cuda.memory_reserved(device) - before
    seed.fill_(5)
    recording.replay()

    assert taken < 4 * 4 * NUMBERS
    assert results.tolist() == [5.0 + number for number in range(EXCHANGES)]

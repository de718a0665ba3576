"""What is made on a queue beside the computation: its memory is used again, but never while something reads it.

It imports no pytest, so that `quarter_hour/queues.py` runs these tests where there is none.
"""

import time

import torch

from runtime.kernels.device import CudaQueue, CudaRecorder, PinnedLink
from runtime.kv.cache import LatentCache
from runtime.kv.host_memory import HostMemory

EXCHANGES, NUMBERS = 20, 16 * 2**20  # of 64 MB each


def exchanges(queue, seed, results):
    """As a step's: each made beside, read slowly by what computes, and freed before the next begins."""
    for number in range(EXCHANGES):
        with queue.side_work():
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


def test_latents_come_in_while_the_device_computes(device):
    """The copy has ended before what computes has; after it is joined, its pages hold what was sent."""
    link = PinnedLink(device)
    cache = LatentCache(8, 576, 8192, torch.bfloat16, device, link)
    latents, table = link.empty((8, 8000, 576), torch.bfloat16).normal_(), []
    cache.allocate(table, 8000)
    for _ in range(2):  # the first one loads kernels, which waits for the device
        torch.cuda.synchronize()
        arrival = cache.swap_in(table, latents)
        torch.cuda._sleep(2 * 10**9)  # cycles: about a second
        wait = link.make_wait(device)
        computes = torch.cuda.current_stream().record_event()
        ends_at = time.monotonic() + 5
        while not arrival.has_arrived() and time.monotonic() < ends_at:
            time.sleep(0.001)
        was_computing = not computes.query()
        arrival.join()
        wait()

    assert was_computing
    assert cache.copy_to_host(table, 8000).equal(latents)


def test_cached_blocks_go_to_pinned_memory_and_come_back(device):
    """Their pages are written again as soon as the next step may write; a slower tier reads and fills lent memory."""
    shape, num_blocks = (8, 64, 576), 48
    link, num_bytes = PinnedLink(device), 64 * 8 * 64 * 576 * 2
    cache = LatentCache(8, 576, num_blocks * 64, torch.bfloat16, device, link, HostMemory(num_bytes), num_bytes)
    hashes, tenant = [number.to_bytes(32) for number in range(num_blocks)], bytes(8)
    latents, table = link.empty((8, num_blocks * 64, 576), torch.bfloat16).normal_(), []
    cache.allocate(table, num_blocks * 64)
    cache.swap_in(table, latents).join()
    cache.publish(table, 0, hashes, tenant)
    cache.free(table)
    torch.cuda._sleep(10**9)  # the step that computes meanwhile
    cache.save(num_blocks)
    saved = set(cache.fence_saves())
    cache.allocate(table, num_blocks * 64)
    for page in table:
        cache._pages[:, page] = -1
    torch.cuda.synchronize()
    saved |= set(cache.fence_saves())
    lent = cache.host.lend(hashes[5])
    blank = cache.host.lend_blank()
    blank.copy_(lent)
    cache.host.add(b"copied".rjust(32), blank, tenant)
    number, arrival = cache.load(table, 0, hashes)
    arrival.join()
    _, copied = cache.host.load(
        [b"copied".rjust(32)], [page := torch.empty(shape, dtype=torch.bfloat16, device=device)]
    )
    copied.join()

    assert saved == set(hashes)
    assert number == num_blocks
    assert lent.is_pinned()
    assert cache.copy_to_host(table, num_blocks * 64).equal(latents)
    assert page.cpu().equal(latents[:, 5 * 64 : 6 * 64])

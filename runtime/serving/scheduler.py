"""Choose what the next step of one rank computes, and whose latents lie in the cache.

    waiting    in order of arrival; their latents are nowhere, or in host memory: as they came from a prefill unit, or
               as they were when the cache ran out of pages
    running    in the cache, in the same order, at most `max_requests`

A step, in this order:
    1. room for one more token of each that decodes, the oldest first. Where pages run out, the newest of all is
       preempted: its latents go to host memory and it to the head of `waiting`.
    2. entry for whoever waits, in order, while there are pages for all its tokens so far. Its latents, if it has any,
       are copied into them while others compute: it takes part once they are there, or at once if it would be alone.
    3. chunks of the prompts in the cache, the oldest first, `max_batch_tokens` in all. A prompt goes on behind the
       blocks that others have computed, and waits for the one that an older prompt is computing now.
    4. a row for each request that decodes. The rows that `max_requests` leaves go to requests that replay tokens which
       lost ranks had generated, the oldest first.

No request is lost and none starves: the cache holds one request of full length, the oldest is preempted by nobody, and
nobody overtakes. Whoever is preempted gives up the pages that it shares with others, and copies the rest alone. If
those others are gone too when it comes back, and their pages with them, it starts over. Prefill, decode and mixed units
differ in which requests they get, not in this policy.

Models: nano-vllm's `Scheduler` (waiting and running, ask then act), mini-sglang's chunked prefill under a budget.
"""

from collections import deque
from dataclasses import dataclass

from runtime.kv.cache import LatentCache, PageTable
from runtime.launch import Limits
from runtime.model.forward_batch import Chunk
from runtime.protocol.counting import PAGE_TOKENS
from runtime.serving.request import Request

__all__ = ["Batch", "Scheduler"]


@dataclass(frozen=True)
class Batch:
    """The work of a step: `requests[i]` is the one of chunk i, those in prefill before those in decode.

    A request that replays has several chunks, in order.
    """

    requests: list[Request]
    prefilling: list[Chunk]
    decoding: list[Chunk]


class Scheduler:
    """The policy. Only the scheduler gives pages and takes them back."""

    def __init__(self, cache: LatentCache, limits: Limits) -> None:
        self.cache = cache
        self._limits = limits
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.num_queried_tokens = self.num_hit_tokens = 0  # of prompts that were looked up; found of these
        self._arrived: list[str] = []

    def has_work(self) -> bool:
        """Return whether a request waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Let a request wait."""
        self.waiting.append(request)
        self._arrived.append(request.id)

    def take_arrived(self) -> list[str]:
        """Return the requests that came since this was called last, gone or not."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def schedule(self) -> Batch:
        """Return the next step's work, which may be empty."""
        self._make_room()
        self._let_in()
        self._take_in()
        prefilling = self._chunks()
        decoding = self._rows()
        return Batch(
            [*prefilling, *(request for request, _ in decoding)],
            list(prefilling.values()),
            [row for _, row in decoding],
        )

    def advance(self, request: Request, end: int) -> None:
        """Note that a request's latents are computed up to `end`; whole blocks of a prompt can be found from now on."""
        if request.is_prefilling:
            first = request.num_cached // PAGE_TOKENS
            self.cache.name(request.table, first, request.block_names[first : end // PAGE_TOKENS])
        request.num_cached = end

    def end(self, request: Request) -> None:
        """Take out a running request that is finished, or that nobody waits for any more."""
        self.running.remove(request)
        self._join(request)
        self.cache.free(request.table)

    def abort(self, request_id: str) -> list[Request]:
        """Drop a request that nobody waits for any more, wherever it is; return it, or none if it was not here."""
        aborted = [request for request in (*self.running, *self.waiting) if request.id == request_id]
        self.waiting = deque(request for request in self.waiting if request.id != request_id)
        for request in [request for request in self.running if request.id == request_id]:
            self.end(request)
        return aborted

    def _make_room(self) -> None:
        number = 0
        while number < len(self.running):
            request = self.running[number]
            if self.cache.can_allocate(request.table, request.num_tokens):
                self.cache.allocate(request.table, request.num_tokens)
                number += 1
            else:
                self._preempt(self.running.pop())

    def _preempt(self, request: Request) -> None:
        if request.arrival is None:
            shared = min(self.cache.num_shared(request.table), request.num_cached // PAGE_TOKENS)
            request.num_kept = shared * PAGE_TOKENS
            request.latents = self.cache.swap_out(request.table, request.num_cached, request.num_kept)
        self._join(request)
        self.cache.free(request.table)
        self.waiting.appendleft(request)
        self.num_preemptions += 1

    def _let_in(self) -> None:
        while self.waiting and len(self.running) < self._limits.max_requests:
            request = self.waiting[0]
            shared = self._shared_pages(request)
            if not self.cache.can_allocate(request.table, request.num_tokens, shared):
                return
            self.cache.allocate(request.table, request.num_tokens, shared)
            if request.latents is not None:
                request.arrival = self.cache.swap_in(request.table, request.latents, request.num_kept)
            elif request.block_root is not None and not request.starts_over:
                self.num_queried_tokens += request.num_to_prefill
            self.running.append(self.waiting.popleft())

    def _shared_pages(self, request: Request) -> PageTable:
        """Return the pages that hold a waiting request's first blocks. Without those that it kept, it starts over."""
        if request.latents is not None:
            kept = self.cache.find(request.block_names[: request.num_kept // PAGE_TOKENS])
            if len(kept) * PAGE_TOKENS == request.num_kept:
                return kept
            request.latents, request.starts_over = None, True
            request.num_cached = request.num_kept = 0
        return self.cache.find(request.names_to_find)

    def _take_in(self) -> None:
        """Let requests take part whose latents are there. A rank without any other lets its step wait for them."""
        would_be_idle = all(request.arrival is not None for request in self.running)
        for request in self.running:
            if would_be_idle or request.arrival is None or request.arrival.is_here():
                self._join(request)
                request.latents = None

    def _join(self, request: Request) -> None:
        """Let all that is computed from now on come after the copy of a request's latents, if one is under way."""
        if request.arrival is not None:
            request.arrival.join()
            request.arrival = None

    def _chunks(self) -> dict[Request, Chunk]:
        chunks: dict[Request, Chunk] = {}
        room = self._limits.max_batch_tokens
        under_way: set[bytes] = set()  # the blocks that older prompts are computing
        for request in self._present():
            if not request.is_prefilling:
                continue
            self._reuse(request)
            if not under_way.isdisjoint(request.names_to_find[:1]):
                continue
            number = request.num_cached // PAGE_TOKENS
            under_way.update(request.block_names[number : number + 1])
            if room:
                chunks[request] = request.next_of_prompt(room)
                room -= len(chunks[request].token_ids)
        return chunks

    def _reuse(self, request: Request) -> None:
        """Let a prompt go on behind the blocks that others have computed; what is handed over is sent from there."""
        found = self.cache.find(request.names_to_find)
        if not found:
            return
        start, end = request.num_cached, request.num_cached + len(found) * PAGE_TOKENS
        self.cache.share(request.table, start // PAGE_TOKENS, found)
        request.num_cached = end
        if request.transfer is not None:
            for layer in range(len(self.cache.layers)):
                request.transfer.put(layer, start, self.cache.read(layer, request.table, start, end))
        if not request.starts_over:
            request.num_hits += end - start
            self.num_hit_tokens += end - start

    def _rows(self) -> list[tuple[Request, Chunk]]:
        decoding = [request for request in self._present() if not request.is_prefilling]
        to_spare = self._limits.max_requests - len(decoding)
        rows = []
        for request in decoding:
            of_request = request.next_rows(1 + to_spare)
            to_spare -= len(of_request) - 1
            rows += [(request, row) for row in of_request]
        return rows

    def _present(self) -> list[Request]:
        """Return the running requests whose latents are in the cache."""
        return [request for request in self.running if request.arrival is None]

"""Chooses what the next step of one rank computes, and which requests' latents are in the cache.

    fetching   until blocks of a slower tier are in host memory (`fetches.py`)
    waiting    in order of arrival. They have no latents, or latents in host memory: from a prefill unit, or from the
               cache when it ran out of pages
    running    in the cache, in the same order, at most `max_requests`

A step, in this order:
    1. Give each decoding request room for one more token, the oldest first. When pages run out, first
       let prefixes give way that are held for others (`kv/held_prefix.py`), then preempt the newest request: its
       latents go to host memory, and it goes to the head of `waiting`.
    2. Admit waiting requests in order, while there are pages for all tokens of each. Latents and blocks in host memory
       are copied into the pages while other requests compute. A request takes part once they are there, or at once if
       there is nothing else to compute.
    3. Take chunks of the prompts in the cache, the oldest first, `max_batch_tokens` in all. A prompt skips blocks that
       others have computed. If an older prompt is computing or loading its next block, it waits.
    4. Take a row for each decoding request. If that makes fewer than `max_requests`, the rest goes to requests that
       replay the tokens of lost ranks, the oldest first.
    5. Copy blocks that no request holds to host memory, about as many as the step computes. A rank without work does
       only this.

A request is lost only if its latents have to go to host memory and find no room there: then it is crowded out. No
request starves: the cache has room for one request of full length, the oldest is never preempted, and nobody overtakes
in `waiting`. A preempted request gives up the pages that it shares, and only the other pages are copied. If the shared
ones are gone when it comes back, it starts over. A decode rank cannot compute prompts, so it copies all pages. Prefill,
decode and mixed units get different requests and have the same policy.

Models: nano-vllm's `Scheduler` (waiting and running, ask then act), mini-sglang's chunked prefill under a budget.
"""

from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal

from runtime.kv.cache import LatentCache, PageTable
from runtime.kv.held_prefix import HeldPrefix, HeldPrefixes
from runtime.launch import Limits
from runtime.model.forward_batch import Chunk
from runtime.protocol.counting import PAGE_TOKENS
from runtime.serving.fetches import Fetches, SlowTier
from runtime.serving.request import Request

__all__ = ["Batch", "Scheduler"]

Tier = Literal["device", "host", "disk"]


@dataclass(frozen=True)
class Batch:
    """The work of a step. Chunk i belongs to `requests[i]`; chunks of prefill come before chunks of decode.

    A request that replays tokens has several chunks, in order.
    """

    requests: list[Request]
    prefilling: list[Chunk]
    decoding: list[Chunk]


class Scheduler:
    """The scheduler of one rank's requests. Only the scheduler gives pages to requests and takes them back."""

    def __init__(self, cache: LatentCache, limits: Limits) -> None:
        self.cache = cache
        self._limits = limits
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.prefixes = HeldPrefixes(cache)
        self.num_preemptions = 0
        tiers: tuple[Tier, ...] = ("device",) if cache.host is None else ("device", "host")
        self.queried_tokens = Counter(dict.fromkeys(tiers, 0))  # tier -> prompt tokens that were looked up in it
        self.hit_tokens = Counter[Tier]()  # tier -> tokens that were found in it
        self._crowded_out: list[Request] = []
        self._fetches: Fetches | None = None
        self._arrived: list[str] = []

    def use(self, slow: SlowTier) -> None:
        """Use a slow tier of the prefix cache too, behind the host tier, which the cache must have."""
        self._fetches = Fetches(self.cache, slow)
        self.queried_tokens["disk"] = 0

    @property
    def fetching(self) -> list[Request]:
        """The requests that wait for blocks of a slow tier."""
        return [] if self._fetches is None else list(self._fetches)

    def has_work(self) -> bool:
        """Return whether any request is waiting, fetching or running."""
        return bool(self.waiting or self.running or self.fetching)

    def add(self, request: Request) -> None:
        """Queue a request until the cache has room for it. A prompt may wait for blocks of a slow tier first."""
        self._arrived.append(request.id)
        if request.latents is not None:
            self.waiting.append(request)
            return
        self._look_up(request)
        if self._fetches is None or request.block_root is None:
            self.waiting.append(request)
            return
        self.queried_tokens["disk"] += request.num_to_prefill - request.num_found
        if not self._fetches.begin(request, request.num_found // PAGE_TOKENS):
            self.waiting.append(request)

    def take_arrived(self) -> list[str]:
        """Return the ids of the requests that came since the last call, including ended ones."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def take_crowded_out(self) -> list[Request]:
        """Return the requests dropped since the last call because host memory had no room for their latents."""
        crowded_out, self._crowded_out = self._crowded_out, []
        return crowded_out

    def schedule(self) -> Batch:
        """Admit waiting requests as far as there is room, and return the next step's work, which may be empty.

        If no other request has work, wait for latents that are still being copied. Begin to copy idle blocks to host
        memory.
        """
        self._fence_saves()
        if self._fetches is not None:
            finished = self._fetches.take_finished()
            for request in finished:
                self._look_up(request)
            self.waiting += finished
        self._make_room()
        self._admit()
        self._start_arrived(waits=False)
        batch = self._batch()
        if not batch.requests:
            self._start_arrived(waits=True)
            batch = self._batch()
        self.cache.save(_num_blocks_to_copy(sum(len(chunk.token_ids) for chunk in batch.prefilling)))
        return batch

    def rest(self) -> None:
        """Copy blocks to host memory, in a turn of the loop without computation."""
        self._fence_saves()
        self.cache.save(_num_blocks_to_copy(self._limits.max_batch_tokens))

    def _fence_saves(self) -> None:
        saved = self.cache.fence_saves()
        if self._fetches is not None:
            self._fetches.offer_saved(saved)

    def _look_up(self, request: Request) -> None:
        request.num_found = self.cache.num_found(request.next_block_hashes) * PAGE_TOKENS

    def _batch(self) -> Batch:
        prefilling = self._prompt_chunks()
        decoding = self._decode_rows()
        return Batch(
            [*prefilling, *(request for request, _ in decoding)],
            list(prefilling.values()),
            [row for _, row in decoding],
        )

    def advance(self, request: Request, end: int) -> None:
        """Record that a request's latents are computed up to `end`.

        Let other requests find its new whole blocks, if it is prefilling or `shares_answer`.
        """
        first, behind = request.num_cached // PAGE_TOKENS, end // PAGE_TOKENS
        if first < behind and (request.is_prefilling or request.shares_answer):
            self.cache.publish(request.table, first, request.block_hashes(first, behind), request.tenant)
        request.num_cached = end

    def end(self, request: Request) -> None:
        """Remove a running request that has finished or that nobody waits for, and free its pages."""
        self.running.remove(request)
        self._order_after_copy(request)
        if self._fetches is not None:
            self._fetches.note_use(request)
        self.cache.free(request.table)

    def abort(self, request_id: str) -> list[Request]:
        """Drop a request that nobody waits for.

        Return the request in a list; the list is empty if this rank does not have it.
        """
        aborted = [request for request in (*self.running, *self.waiting) if request.id == request_id]
        if self._fetches is not None:
            aborted += self._fetches.abort(request_id)
        for request in self.waiting:
            if request.id == request_id and request.prefix is not None:
                self.prefixes.release(request.prefix)
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
            elif not self.prefixes.give_way():
                self._preempt(self.running.pop())

    def _preempt(self, request: Request) -> None:
        is_outside = request.pending_copy is not None and (request.can_start_over or not request.num_kept)
        self._order_after_copy(request)
        has_room = is_outside or self._swap_out(request)
        self.cache.free(request.table)
        self.num_preemptions += 1
        if has_room:
            self.waiting.appendleft(request)
        else:
            self._crowded_out.append(request)

    def _swap_out(self, request: Request) -> bool:
        shared = min(self.cache.num_shared(request.table), request.num_cached // PAGE_TOKENS)
        if not request.can_start_over:
            shared = 0
        request.num_kept = shared * PAGE_TOKENS
        request.latents = self.cache.swap_out(request.table, request.num_cached, request.num_kept)
        return request.latents is not None

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._limits.max_requests:
            request = self.waiting[0]
            if request.prefix is not None and not self._join_prefix(request):
                self._crowded_out.append(self.waiting.popleft())
                continue
            shared = self._shared_pages(request)
            if not self._can_allocate(request, shared):
                return
            self.cache.allocate(request.table, request.num_tokens, shared)
            if request.latents is not None:
                request.loading = self._take_prefix(request)
                request.pending_copy = self.cache.swap_in(request.table, request.latents, request.num_kept)
            elif request.block_root is not None:
                self._load(request, len(shared))
            if request.pending_copy is None:
                self._arrive(request)
            self.running.append(self.waiting.popleft())

    def _can_allocate(self, request: Request, shared: PageTable) -> bool:
        """Return whether the cache has pages for a waiting request.

        If no request is running, held prefixes give up their pages for the waiting one.
        """
        while not self.cache.can_allocate(request.table, request.num_tokens, shared):
            if self.running or not self.prefixes.give_way(keep=request.prefix):
                return False
        return True

    def _join_prefix(self, request: Request) -> bool:
        """Join the latents of a prefix that was moved to host memory with the latents that arrived after it.

        Return False if the prefix is lost, or if host memory has no room for the joined latents.
        """
        assert request.prefix is not None
        assert request.latents is not None
        if request.prefix.is_lost:
            return False
        if request.prefix.latents is not None:
            request.latents = self.cache.join_outside(request.prefix.latents, request.latents)
            request.num_kept, request.prefix = 0, HeldPrefix(request.prefix.root, [])
        return request.latents is not None

    def _take_prefix(self, request: Request) -> range:
        """Let a request that enters the cache take over the pages of its held prefix.

        Return the range of numbers of the request's whole blocks after the prefix. The caller lets other requests find
        these blocks.
        """
        if request.prefix is None:
            return range(0)
        self.prefixes.hand_over(request.prefix)
        request.prefix = None
        return range(request.num_kept // PAGE_TOKENS, request.num_cached // PAGE_TOKENS)

    def _shared_pages(self, request: Request) -> PageTable:
        """Return the pages of a waiting request's first blocks, as far as the cache has them.

        If blocks that the request counted on are gone, the request starts over.
        """
        if request.table:
            return []
        if request.latents is not None:
            kept = self.cache.find(request.block_hashes(0, request.num_kept // PAGE_TOKENS))
            if len(kept) * PAGE_TOKENS == request.num_kept:
                return kept
            request.latents, request.starts_over = None, True
            request.num_cached = request.num_kept = 0
        return self.cache.find(request.next_block_hashes)

    def _load(self, request: Request, num_shared: int) -> None:
        """Begin to load a prompt's blocks after the first `num_shared`, unless another prompt loads them.

        The blocks come from host memory.
        """
        if not request.starts_over and not request.loading:
            self.queried_tokens["device"] += request.num_to_prefill
            if self.cache.host is not None:
                self.queried_tokens["host"] += request.num_to_prefill - num_shared * PAGE_TOKENS
        hashes = request.next_block_hashes[num_shared:]
        if not self._loading_block_hashes().isdisjoint(hashes[:1]):
            hashes = []
        num_blocks, request.pending_copy = self.cache.load(request.table, num_shared, hashes)
        request.loading = range(num_shared, num_shared + num_blocks)
        request.num_found = request.loading.stop * PAGE_TOKENS

    def _loading_block_hashes(self) -> set[bytes]:
        loading = (request for request in self.running if request.pending_copy is not None)
        return {block_hash for request in loading for block_hash in request.loading_block_hashes}

    def _start_arrived(self, waits: bool) -> None:
        """Start the requests whose latents have arrived in the cache.

        If the step `waits` for copies, also start the requests whose latents are still being copied.
        """
        for request in self.running:
            if request.pending_copy is not None and (waits or request.pending_copy.has_arrived()):
                self._arrive(request)

    def _arrive(self, request: Request) -> None:
        """Start a request whose latents are in its pages, and publish the loaded blocks so that others find them."""
        self._order_after_copy(request)
        request.latents = None
        self.cache.publish(request.table, request.loading.start, request.loading_block_hashes, request.tenant)

    def _order_after_copy(self, request: Request) -> None:
        """Order later computation after the copy of a request's latents, if one is running."""
        if request.pending_copy is not None:
            request.pending_copy.join()
            request.pending_copy = None

    def _prompt_chunks(self) -> dict[Request, Chunk]:
        chunks: dict[Request, Chunk] = {}
        room = self._limits.max_batch_tokens
        under_way = self._loading_block_hashes()  # and the blocks that older prompts are computing
        for request in self._cached_requests():
            if not request.is_prefilling:
                continue
            self._reuse(request)
            if not under_way.isdisjoint(request.next_block_hashes[:1]):
                continue
            number = request.num_cached // PAGE_TOKENS
            under_way.update(request.block_hashes(number, min(number + 1, request.num_to_prefill // PAGE_TOKENS)))
            if room:
                chunks[request] = request.next_chunk(room)
                room -= len(chunks[request].token_ids)
        return chunks

    def _reuse(self, request: Request) -> None:
        """Skip the prompt's next blocks as far as other requests have computed them.

        If the request will be handed over to a decode rank, send the blocks' latents there.
        """
        found = self.cache.find(request.next_block_hashes)
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
            self._count_hits(request, range(start // PAGE_TOKENS, end // PAGE_TOKENS))

    def _count_hits(self, request: Request, blocks: range) -> None:
        loaded = _intersect(blocks, request.loading)
        fetched = _intersect(loaded, request.fetched)
        self.hit_tokens["disk"] += len(fetched) * PAGE_TOKENS
        self.hit_tokens["host"] += (len(loaded) - len(fetched)) * PAGE_TOKENS
        self.hit_tokens["device"] += (len(blocks) - len(loaded)) * PAGE_TOKENS

    def _decode_rows(self) -> list[tuple[Request, Chunk]]:
        decoding = [request for request in self._cached_requests() if not request.is_prefilling]
        to_spare = self._limits.max_requests - len(decoding)
        rows = []
        for request in decoding:
            of_request = request.next_rows(1 + to_spare)
            to_spare -= len(of_request) - 1
            rows += [(request, row) for row in of_request]
        return rows

    def _cached_requests(self) -> list[Request]:
        """Return the running requests whose latents have all arrived in the cache."""
        return [request for request in self.running if request.pending_copy is None]


def _num_blocks_to_copy(num_tokens: int) -> int:
    """Return how many blocks to copy to host memory in a step that prefills `num_tokens`.

    The number is one more than the blocks that these tokens fill.
    """
    return num_tokens // PAGE_TOKENS + 1


def _intersect(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))

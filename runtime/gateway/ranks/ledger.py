"""What one rank has to do: what this gateway gave it, put right by what the rank reports.

    load = own + (report - own that had arrived, at the moment of the report)

Own is exact: every request that this gateway gave the rank, from the moment it was sent, less what its tokens show to
be done. The rank's report (`Load`) is the truth about all that had reached it: requests of other gateways, too, and how
far a long prompt is. It names the requests that it is the first to include. Messages of one connection keep their
order, so the difference is what this gateway could not know. It stays until the next report.

A request counts with the KV that it is expected to need and, once it holds more, with that. One that finds no room
waits, and whoever waits longest gets the first room that comes free.

It chooses no rank (`router.py` does), and sends nothing.

Models: the balancers of vLLM and SGLang, which add what they have sent since a rank's last report to it.
"""

from dataclasses import dataclass

from runtime.gateway.ranks.rank_load import NO_WORK, Phase, RankLimits, RankLoad, RequestSize, Work
from runtime.protocol.counting import PAGE_TOKENS, in_pages
from runtime.protocol.messages import Load

__all__ = ["Ledger"]


@dataclass
class _Entry:
    """A request of this gateway: what it counts, what a report that includes it says of it, and its tokens so far."""

    work: Work
    reported: Work
    num_tokens: int  # of its prompt and its answer
    has_arrived: bool = False
    has_token: bool = False


class Ledger:
    """The requests of one rank."""

    def __init__(self, unit: str, rank: int, phase: Phase, limits: RankLimits) -> None:
        self._unit, self._rank, self._phase, self._limits = unit, rank, phase, limits
        self._entries: dict[str, _Entry] = {}
        self._own = NO_WORK  # of all in `_entries`
        self._reported = NO_WORK  # by those that have arrived
        self._waiting: dict[str, Work] = {}  # those that found no room, the oldest first
        self._unknown_work, self._num_unknown_waiting = (
            NO_WORK,
            0,
        )  # what the last report said beyond what was known here
        self._load: RankLoad | None = None  # as it was asked for last, until something changes

    @property
    def load(self) -> RankLoad:
        """What the rank has now. A gateway asks every rank for every request, and few have changed."""
        if self._load is None:
            self._load = self._sum()
        return self._load

    def _sum(self) -> RankLoad:
        num_waiting = max(len(self._waiting) + self._num_unknown_waiting, 0)
        work = _clip_negative(self._own + self._unknown_work)
        return RankLoad(self._unit, self._rank, self._phase, work, self._limits, num_waiting)

    def give(self, request_id: str, size: RequestSize) -> None:
        """Note a request that is sent to the rank, or will come to it from another one."""
        if request_id in self._entries:
            return  # a mixed rank is given its requests twice: for their prompts and for the rest
        work = size.work_at(self._phase)
        if not self.load.fits(work):
            self._waiting[request_id] = work
        num_tokens = size.prompt_tokens + (1 if self._phase == "decode" else 0)  # it comes with its first token
        reported = Work(1, work.prompt_tokens, work.attention_pairs, self._kv_tokens(num_tokens))
        self._add(request_id, _Entry(work, reported, num_tokens))

    def count_token(self, request_id: str) -> bool:
        """Note another token of the request, which tells that its prompt is computed; return whether that is new."""
        entry = self._entries.get(request_id)
        if entry is None:
            return False
        entry.num_tokens += 1
        if entry.has_token and (entry.num_tokens - 1) % PAGE_TOKENS:
            return False  # nothing else is new: the token is in a page that the request has
        self._waiting.pop(request_id, None)
        kv = self._kv_tokens(entry.num_tokens)
        changed = _Entry(
            Work(1, 0, 0, max(entry.work.kv_tokens, kv)), Work(1, 0, 0, kv), entry.num_tokens, entry.has_arrived, True
        )
        self._remove(entry)
        self._add(request_id, changed)
        return not entry.has_token

    def end(self, request_id: str) -> None:
        """Note that the rank has nothing more to do for the request."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self._waiting.pop(request_id, None)
            self._remove(entry)
            self._seat_waiting()

    def apply_report(self, report: Load) -> None:
        """Put the load right by what the rank says."""
        for request_id in report.arrived:
            entry = self._entries.get(request_id)
            if entry is not None and not entry.has_arrived:
                entry.has_arrived = True
                self._reported += entry.reported
        kv = 0 if self._phase == "prefill" else report.kv_tokens
        self._unknown_work = (
            Work(report.num_requests, report.prompt_tokens, report.attention_pairs, kv) - self._reported
        )
        self._num_unknown_waiting = report.num_waiting - sum(self._entries[each].has_arrived for each in self._waiting)
        self._load = None

    def _add(self, request_id: str, entry: _Entry) -> None:
        self._entries[request_id] = entry
        self._own += entry.work
        self._load = None
        self._reported += entry.reported if entry.has_arrived else NO_WORK

    def _remove(self, entry: _Entry) -> None:
        self._own -= entry.work
        self._load = None
        self._reported -= entry.reported if entry.has_arrived else NO_WORK

    def _seat_waiting(self) -> None:
        """Let those that wait have the room that there is, the oldest first."""
        placed = self.load.work - sum(self._waiting.values(), NO_WORK)
        for request_id, work in list(self._waiting.items()):
            if not self._limits.fit(placed + work):
                return
            placed += work
            del self._waiting[request_id]
            self._load = None

    def _kv_tokens(self, num_tokens: int) -> int:
        """Return the KV of a request with so many tokens; of prefill ranks none is counted."""
        return 0 if self._phase == "prefill" else in_pages(num_tokens)


def _clip_negative(work: Work) -> Work:
    """Return the work without negative parts: a request that ended since the report may be taken off twice."""
    return Work(
        max(work.num_requests, 0), max(work.prompt_tokens, 0), max(work.attention_pairs, 0), max(work.kv_tokens, 0)
    )

"""The load of one rank: what this gateway gave it, corrected by what the rank reports.

    load = own + (report - own that had arrived, at the moment of the report)

`own` is exact: every request that this gateway has sent to the rank, less the work that its tokens show to be done. The
rank's report (`Load`) is the truth about everything that had reached the rank. It includes requests of other gateways,
and how far a long prompt is. It names the requests that it is the first to include. Messages of one connection keep
their order, so the difference in parentheses is what this gateway could not know. It is kept until the next report.

A request counts with the KV that it is expected to need or, once it has more, with what it has. A request without room
waits, and the one that has waited longest gets the first room that becomes free.

It chooses no rank (`router.py` does), and sends nothing.

Models: the balancers of vLLM and SGLang, which add what they have sent since a rank's last report to that report.
"""

from dataclasses import dataclass

from runtime.gateway.ranks.rank_load import NO_WORK, Phase, RankLimits, RankLoad, RequestSize, Work
from runtime.protocol.counting import PAGE_TOKENS, round_up_to_page
from runtime.protocol.messages import Load

__all__ = ["Ledger"]


@dataclass
class _Entry:
    """A request of this gateway. `work` is its load, and `reported` the part of it that the rank's report includes."""

    work: Work
    reported: Work
    num_tokens: int  # of its prompt and its answer so far
    has_arrived: bool = False
    has_token: bool = False


class Ledger:
    """The requests of one rank, and its load."""

    def __init__(self, unit: str, rank: int, phase: Phase, limits: RankLimits) -> None:
        self._unit, self._rank, self._phase, self._limits = unit, rank, phase, limits
        self._entries: dict[str, _Entry] = {}
        self._own = NO_WORK  # the work of all `_entries`
        self._reported = NO_WORK  # the reported work of the entries that have arrived
        self._waiting: dict[str, Work] = {}  # requests without room, the oldest first
        # reported work that this gateway had not recorded
        self._unknown_work, self._num_unknown_waiting = NO_WORK, 0
        self._load: RankLoad | None = None  # cached until something changes

    @property
    def load(self) -> RankLoad:
        """The rank's present load.

        The sum is cached: each request reads the load of all ranks, of which few have changed.
        """
        if self._load is None:
            self._load = self._sum()
        return self._load

    def _sum(self) -> RankLoad:
        num_waiting = max(len(self._waiting) + self._num_unknown_waiting, 0)
        work = _clip_negative(self._own + self._unknown_work)
        return RankLoad(self._unit, self._rank, self._phase, work, self._limits, num_waiting)

    def give(self, request_id: str, size: RequestSize, num_held: int = 0) -> None:
        """Add a request to the rank's load when it is sent to the rank, or will be handed over to it.

        The rank is expected to have the first `num_held` tokens of the prompt in its cache. A request that the rank has
        already is not added again.
        """
        if request_id in self._entries:
            return  # a mixed rank gets its requests twice: for the first token and for the rest
        work = size.work_at(self._phase, num_held)
        if not self.load.fits(work):
            self._waiting[request_id] = work
        # a request comes to it with its first token
        num_tokens = size.prompt_tokens + (1 if self._phase == "decode" else 0)
        reported = Work(1, work.prompt_tokens, work.attention_pairs, self._kv_tokens(num_tokens))
        self._add(request_id, _Entry(work, reported, num_tokens))

    def count_token(self, request_id: str) -> bool:
        """Count another token of the request. Return whether it is the first: the rank has then computed the prompt.

        Return False for a request that is not in the rank's load.
        """
        entry = self._entries.get(request_id)
        if entry is None:
            return False
        entry.num_tokens += 1
        if entry.has_token and (entry.num_tokens - 1) % PAGE_TOKENS:
            return False  # the load is the same: the token goes into a page that the request has
        self._waiting.pop(request_id, None)
        kv = self._kv_tokens(entry.num_tokens)
        changed = _Entry(
            Work(1, 0, 0, max(entry.work.kv_tokens, kv)), Work(1, 0, 0, kv), entry.num_tokens, entry.has_arrived, True
        )
        self._remove(entry)
        self._add(request_id, changed)
        return not entry.has_token

    def end(self, request_id: str) -> None:
        """Remove a request that the rank has finished."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self._waiting.pop(request_id, None)
            self._remove(entry)
            self._admit_waiting()

    def apply_report(self, report: Load) -> None:
        """Correct the rank's load by the rank's own report."""
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

    def _admit_waiting(self) -> None:
        """Let waiting requests, oldest first, count as running while the rank has room for them."""
        placed = self.load.work - sum(self._waiting.values(), NO_WORK)
        for request_id, work in list(self._waiting.items()):
            if not self._limits.fit(placed + work):
                return
            placed += work
            del self._waiting[request_id]
            self._load = None

    def _kv_tokens(self, num_tokens: int) -> int:
        """Return the KV tokens that a request of `num_tokens` takes, in whole pages. On prefill ranks they are 0."""
        return 0 if self._phase == "prefill" else round_up_to_page(num_tokens)


def _clip_negative(work: Work) -> Work:
    """Return work with negative parts set to 0. A request that ended since the report may be subtracted twice."""
    return Work(
        max(work.num_requests, 0), max(work.prompt_tokens, 0), max(work.attention_pairs, 0), max(work.kv_tokens, 0)
    )

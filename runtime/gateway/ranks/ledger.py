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
class _Given:
    """A request of this gateway: what it counts, what a report that includes it says of it, and its tokens so far."""

    work: Work
    held: Work
    num_tokens: int  # of its prompt and its answer
    has_arrived: bool = False
    has_token: bool = False


class Ledger:
    """The requests of one rank."""

    def __init__(self, unit: str, rank: int, phase: Phase, limits: RankLimits) -> None:
        self._unit, self._rank, self._phase, self._limits = unit, rank, phase, limits
        self._given: dict[str, _Given] = {}
        self._own = NO_WORK  # of all in `_given`
        self._held = NO_WORK  # by those that have arrived
        self._waiting: dict[str, Work] = {}  # those that found no room, the oldest first
        self._unknown, self._num_unknown_waiting = NO_WORK, 0  # what the last report said beyond what was known here
        self._load: RankLoad | None = None  # as it was asked for last, until something changes

    @property
    def load(self) -> RankLoad:
        """What the rank has now. A gateway asks every rank for every request, and few have changed."""
        if self._load is None:
            self._load = self._sum()
        return self._load

    def _sum(self) -> RankLoad:
        num_waiting = max(len(self._waiting) + self._num_unknown_waiting, 0)
        work = _at_least_none(self._own + self._unknown)
        return RankLoad(self._unit, self._rank, self._phase, work, self._limits, num_waiting)

    def give(self, request_id: str, size: RequestSize) -> None:
        """Note a request that is sent to the rank, or will come to it from another one."""
        if request_id in self._given:
            return  # a mixed rank is given its requests twice: for their prompts and for the rest
        work = size.at(self._phase)
        if not self.load.fits(work):
            self._waiting[request_id] = work
        num_tokens = size.prompt_tokens + (1 if self._phase == "decode" else 0)  # it comes with its first token
        held = Work(1, work.prompt_tokens, work.attention_pairs, self._kv(num_tokens))
        self._add(request_id, _Given(work, held, num_tokens))

    def hear_token(self, request_id: str) -> bool:
        """Note another token of the request, which tells that its prompt is computed; return whether that is new."""
        given = self._given.get(request_id)
        if given is None:
            return False
        given.num_tokens += 1
        if given.has_token and (given.num_tokens - 1) % PAGE_TOKENS:
            return False  # nothing else is new: the token is in a page that the request has
        self._waiting.pop(request_id, None)
        kv = self._kv(given.num_tokens)
        changed = _Given(
            Work(1, 0, 0, max(given.work.kv_tokens, kv)), Work(1, 0, 0, kv), given.num_tokens, given.has_arrived, True
        )
        self._remove(given)
        self._add(request_id, changed)
        return not given.has_token

    def end(self, request_id: str) -> None:
        """Note that the rank has nothing more to do for the request."""
        given = self._given.pop(request_id, None)
        if given is not None:
            self._waiting.pop(request_id, None)
            self._remove(given)
            self._seat()

    def take(self, report: Load) -> None:
        """Put the load right by what the rank says."""
        for request_id in report.arrived:
            given = self._given.get(request_id)
            if given is not None and not given.has_arrived:
                given.has_arrived = True
                self._held += given.held
        kv = 0 if self._phase == "prefill" else report.kv_tokens
        self._unknown = Work(report.num_requests, report.prompt_tokens, report.attention_pairs, kv) - self._held
        self._num_unknown_waiting = report.num_waiting - sum(self._given[each].has_arrived for each in self._waiting)
        self._load = None

    def _add(self, request_id: str, given: _Given) -> None:
        self._given[request_id] = given
        self._own += given.work
        self._load = None
        self._held += given.held if given.has_arrived else NO_WORK

    def _remove(self, given: _Given) -> None:
        self._own -= given.work
        self._load = None
        self._held -= given.held if given.has_arrived else NO_WORK

    def _seat(self) -> None:
        """Let those that wait have the room that there is, the oldest first."""
        seated = self.load.work - sum(self._waiting.values(), NO_WORK)
        for request_id, work in list(self._waiting.items()):
            if not self._limits.fit(seated + work):
                return
            seated += work
            del self._waiting[request_id]
            self._load = None

    def _kv(self, num_tokens: int) -> int:
        """Return the KV of a request with so many tokens; of prefill ranks none is counted."""
        return 0 if self._phase == "prefill" else in_pages(num_tokens)


def _at_least_none(work: Work) -> Work:
    """Return the work without negative parts: a request that ended since the report may be taken off twice."""
    return Work(
        max(work.num_requests, 0), max(work.prompt_tokens, 0), max(work.attention_pairs, 0), max(work.kv_tokens, 0)
    )

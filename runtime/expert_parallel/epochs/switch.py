"""One rank's part in a switch of its unit to another epoch: a round of moves at a time, between steps.

    proposed   the first rank has a document, and says so in its vote. All ranks receive it and plan the same rounds
    fetching   a round's experts travel to the ranks' staging, beside the steps
    between    all ranks have voted that theirs are there and right: the round takes effect, on all ranks
    checking   after the last round, each rank compares all its slots with the checksums of their experts
    back       one rank has voted that its are not: the same walk leads back, round by round, to the epoch before

Every turn of the step loop begins with a vote, so "between two steps" is the same moment for all ranks, and a round
takes effect on all of them or on none. After a round the layer's map may lie between two epochs, and holds every
expert. No step computes with an expert whose checksum is wrong.

    vote lags    in no switch: this rank has a document. In a switch: this rank has not done its part yet
    vote fails   this rank's part went wrong

A lost peer ends the rank, as it does in a step, and so does a switch that can go neither forward nor back. The unit
then starts again, in the last adopted epoch where somebody has kept it (`worker/control.py`), else in epoch 0.

Models: vLLM 009a5c02 `vllm/distributed/eplb/rebalance_execute.py` and SGLang 06120cc8
`python/sglang/srt/eplb/expert_location_updater.py` move layer by layer through a buffer too. There the engine decides
on a map, here a document does.
"""

import queue
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
import torch

from runtime.errors import EpochError, RuntimeFailure, StagingError
from runtime.expert_parallel.epochs.checksums import Checksums, MovableLayer, check_slots, learn_checksums
from runtime.expert_parallel.epochs.document import Epoch, Standing, read_epoch
from runtime.expert_parallel.epochs.moves import Round, plan_rounds
from runtime.expert_parallel.epochs.staging import Staging
from runtime.expert_parallel.group import Group
from runtime.kernels.device import HostLink
from runtime.launch import UnitLaunch

__all__ = ["Ending", "Proposal", "Switch", "SwitchTotals"]

ELSEWHERE = "it went wrong at another rank, whose log says why"
STAGED_EXPERTS = 2  # assumed: 88 MB of DeepSeek-V3 in FP8; with more, a round stops the steps for longer


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a switch: the epoch that the unit is in then. A `reason` says why it is not the proposed one.

    `moves` and `num_bytes` are what the first rank received.
    """

    number: int
    digest: str
    moves: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    reason: str | None = None


@dataclass(frozen=True)
class Proposal:
    """The document of an epoch, and the function `tell`, which is called once the switch to it has ended."""

    content: bytes
    tell: Callable[[Ending], object]


@dataclass
class SwitchTotals:
    """This rank's switches so far: experts and bytes received, how long they took, and how much of that held up steps.

    `num_undone` switches led back to the epoch in which they began.
    """

    num_undone: int = 0
    moves: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    stall_s: float = 0.0


@dataclass
class _Walk:
    """A switch that has begun and not ended. `maps` is what the layers' slots hold now."""

    proposal: Proposal | None  # the first rank's
    staging: Staging
    maps: list[list[int]]
    began: float
    epoch: Epoch | None = None
    rounds: deque[tuple[int, Round]] = field(default_factory=deque)  # layer after layer
    fetched: tuple[int, Round] | None = None  # it takes effect when all ranks have theirs
    is_checking: bool = False  # all rounds have taken effect
    moves: int = 0
    num_bytes: int = 0
    reason: str | None = None  # why it leads back


class Switch:
    """The switches of one rank. The step loop alone calls `votes` and `turn`, between steps."""

    def __init__(
        self,
        launch: UnitLaunch,
        group: Group,
        layers: Sequence[MovableLayer],
        standing: Standing,
        link: HostLink | None = None,
    ) -> None:
        """Be ready to switch from `standing`. `link` leads to the layers' device; None if that is the CPU."""
        self.standing, self.totals = standing, SwitchTotals()
        self.slots = standing.physical_to_logical  # what they hold, which later differs in the order within a rank
        self._link = HostLink() if link is None else link
        self._launch, self._group, self._layers = launch, group, layers
        self._checksums: Checksums | None = None  # None before the first switch
        self._proposals: queue.SimpleQueue[Proposal] = queue.SimpleQueue()
        self._is_proposed = False  # from a proposal until its switch has ended
        self._thread = ThreadPoolExecutor(1, "switch")
        self._walk: _Walk | None = None
        self._part: Future[None] | None = None  # this rank's part of what the walk waits for

    def propose(self, proposal: Proposal) -> None:
        """Queue a switch to the proposal's epoch, for the step loop. Only the first rank does so, from one thread.

        Raises EpochError if the document is of another unit or not the next epoch, or if a switch is under way.
        """
        read_epoch(proposal.content, self._launch, self.standing)
        if self._is_proposed:
            raise EpochError(f"the unit is already on its way from epoch {self.standing.number} to the next one")
        self._is_proposed = True
        self._proposals.put(proposal)

    def votes(self) -> tuple[bool, bool]:
        """Return this rank's votes: (whether its part of the switch is not done yet, whether the part failed).

        Without a switch, the first vote says whether one is proposed. Raises PeerLost if a rank is gone.
        """
        if self._part is None:
            return not self._proposals.empty(), False
        if not self._part.done():
            return True, False
        error = self._part.exception()
        if error is not None and not isinstance(error, EpochError | StagingError):
            raise error
        return False, error is not None

    def turn(self, lags: bool, fails: bool) -> None:
        """Begin a switch, or take its next step, by the votes of the unit's ranks.

        `lags` and `fails` say whether any rank votes so (see `votes`).
        """
        if self._walk is None:
            if lags:
                self._begin()
        elif not lags:
            began = time.monotonic()
            self._go_on(self._walk, fails)
            self.totals.stall_s += time.monotonic() - began

    def _begin(self) -> None:
        slots_per_rank = len(self.slots[0]) // self._group.size
        proposal = None if self._proposals.empty() else self._proposals.get()
        staging = Staging(self._group, self._layers, slots_per_rank, STAGED_EXPERTS, self._link)
        maps = [list(slots) for slots in self.slots]
        self._walk = walk = _Walk(proposal, staging, maps, time.monotonic())
        self._part = self._do_beside(self._receive_document, walk)

    def _go_on(self, walk: _Walk, fails: bool) -> None:
        assert self._part is not None
        if fails:
            self._turn_back(walk, self._part.exception() or StagingError(ELSEWHERE))
            return
        if walk.fetched is not None:
            assert self._checksums is not None
            layer, done = walk.fetched
            try:
                walk.staging.take_effect(layer, done, self._checksums)
            except StagingError as error:
                self._turn_back(walk, error)
                return
            walk.maps[layer], walk.fetched = done.physical_to_logical, None
        if walk.rounds:
            walk.fetched = walk.rounds.popleft()
            self._part = self._do_beside(self._fetch, walk, *walk.fetched)
        elif not walk.is_checking:
            walk.is_checking = True
            self._part = self._do_beside(self._check, walk)
        else:
            self._end(walk)

    def _turn_back(self, walk: _Walk, error: BaseException) -> None:
        """Drop the fetched round, and let the switch lead back to the epoch in which it began.

        Raises RuntimeFailure if the switch leads back already.
        """
        if walk.reason is not None:
            raise RuntimeFailure(
                f"unit {self._launch.unit} can go neither to another epoch nor back to epoch {self.standing.number}:"
                f" {error}"
            )
        print(f"tidemill: unit {self._launch.unit} does not change its epoch: {error}", file=sys.stderr, flush=True)
        walk.reason = str(error)
        walk.fetched, walk.is_checking = None, False
        self._part = self._do_beside(self._plan, walk, self.standing.physical_to_logical)

    def _end(self, walk: _Walk) -> None:
        """End the switch in the new epoch or, if it was turned back, in the old one. Report how it ended.

        The slots may hold a rank's experts in another order than the epoch's map has them.
        """
        if walk.reason is None and walk.epoch is not None:
            epoch = walk.epoch
            self.standing = Standing(epoch.number, epoch.digest, epoch.physical_to_logical)
        now, self.slots = self.standing, walk.maps
        seconds = time.monotonic() - walk.began
        self.totals.num_undone += walk.reason is not None
        self.totals.moves += walk.moves
        self.totals.num_bytes += walk.num_bytes
        self.totals.seconds += seconds
        self._walk = self._part = None
        if walk.proposal is not None:
            self._is_proposed = False
            received = walk.moves, walk.num_bytes, round(seconds, 3)
            walk.proposal.tell(Ending(now.number, now.digest, *received, walk.reason))

    def _do_beside(self, part: Callable[..., None], *arguments: object) -> Future[None]:
        """Run `part` of the switch on the thread beside the steps, and on a queue of its own where there is a GPU."""

        def do() -> None:
            with self._link.run_beside():
                part(*arguments)

        return self._thread.submit(do)

    # on the thread beside the steps

    def _receive_document(self, walk: _Walk) -> None:
        content = _broadcast(self._group, b"" if walk.proposal is None else walk.proposal.content)
        if self._checksums is None:
            self._checksums = learn_checksums(self._group, self._layers, walk.maps)
        walk.epoch = read_epoch(content, self._launch, self.standing)
        self._plan(walk, walk.epoch.physical_to_logical)

    def _plan(self, walk: _Walk, wanted: Iterable[Sequence[int]]) -> None:
        """Plan the rounds that lead from the layers' present maps to `wanted`. All ranks plan the same rounds."""
        walk.rounds = deque(
            (layer, each)
            for layer, slots in enumerate(wanted)
            for each in plan_rounds(walk.maps[layer], slots, self._group.nodes, STAGED_EXPERTS)
        )

    def _fetch(self, walk: _Walk, layer: int, round_: Round) -> None:
        assert self._checksums is not None
        walk.num_bytes += walk.staging.fetch(layer, round_, self._checksums)
        walk.moves += len(walk.staging.own_moves(round_))

    def _check(self, walk: _Walk) -> None:
        if self._checksums is not None:
            check_slots(self._group, self._layers, walk.maps, self._checksums)


def _broadcast(group: Group, content: bytes) -> bytes:
    """Return the first rank's content on every rank."""
    size = torch.tensor([len(content)])
    if group.rank == 0:
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        group.trade([(peer, each) for peer in range(1, group.size) for each in (size, sent)], [])
        return content
    group.trade([], [(0, size)])
    received = torch.empty(int(size), dtype=torch.uint8)
    group.trade([], [(0, received)])
    return received.numpy().tobytes()

"""A whole day as flows of tokens through queues: a day of a full-size deployment is computed in a fraction of a second.

    demand -> [admission] -> prompts -> tokens -> answers
                                ^          |
                                '-- requests of failed units, computed again

Requests are a continuous flow: all are equal to the mean one, and all groups that serve share them evenly. In mixed
units all groups compute prompts at the same times (`turns.py`). A unit that drains keeps its share and gives back what
is left when its time is over. The day is computed in time steps of `STEP_S` and recorded by the minute. It is played
twice: first without failures and in longer steps, to find how full the queues are at midnight.

There are no single requests here: `latency.py` adds the tails of latencies, and the simulation of requests shows how
unevenly ranks are loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from planner.facts.day import MINUTE_S
from planner.facts.terms import Phase
from stacks.simulator.flows.curves import Curves, Minute
from stacks.simulator.flows.fleet import Fleet, Load, UnitCounts
from stacks.simulator.flows.queues import busy_share, next_requests, next_steps
from stacks.simulator.flows.service import Service
from stacks.simulator.flows.turns import Turns, next_pieces

__all__ = ["play_day"]

STEP_S = 15.0
LEAST_SHARE = 1e-9  # the least share of a mixed unit's time for tokens, so that nothing is divided by 0
PROGRESS_MINUTES = 60


def play_day(
    service: Service,
    demand: Sequence[float],
    fleets: tuple[Fleet, Fleet],
    on_progress: Callable[[float], None] = lambda _: None,
) -> Curves:
    """Simulate a day and return its curves. `demand` is each minute's share of a typical day's requests, `[minutes]`.

    The first of `fleets` plays the day before, which only fills the queues. `on_progress` is called with the
    fraction done.
    """
    flow, minutes = _Flow(service), [Minute()]
    for round_, (fleet, slice_s) in enumerate(zip(fleets, (MINUTE_S, STEP_S), strict=True)):
        minutes = [Minute(asked=service.requests_per_day * each) for each in demand]
        load = Load(dict.fromkeys((service.prompts.phase, service.tokens.phase), 0.0))
        for number, minute in enumerate(minutes):
            load = flow.play(minute, fleet.units_at(number, load), fleet.drain_s, slice_s)
            if number % PROGRESS_MINUTES == 0:
                on_progress((round_ + number / len(demand)) / len(fleets))
    return Curves(minutes)


@dataclass
class _Draining:
    """Units that stopped in the same minute and still answer requests."""

    groups: int
    requests: float  # requests of one group that are not answered yet
    seconds: float  # seconds until the drain ends


@dataclass(frozen=True)
class _GroupCounts:
    """How many attention groups compute prompts, how many make tokens, and in how many units prompts are computed."""

    prompts: int
    tokens: int
    units: int  # units that compute prompts


@dataclass
class _Flow:
    """The state of all queues. `play` changes it by one minute."""

    service: Service
    prompts: float = 0.0  # requests of all groups whose prompt waits or is being computed
    steps: float = 0.0  # steps that these prompts still take; in mixed units, pieces
    requests: float = 0.0  # requests of all serving groups whose prompt is computed
    computing: float = 0.0  # share of time that mixed units spend on prompts
    draining: list[_Draining] = field(default_factory=list)

    def play(self, minute: Minute, changes: Mapping[Phase, UnitCounts], drain_s: float, slice_s: float) -> Load:
        """Simulate one minute and record it in `minute`. Return the share of each phase's capacity that is in use.

        `changes` counts each phase's units that serve, stop and fail. Stopped units drain for `drain_s`. Flows are
        computed for `slice_s` seconds at a time.
        """
        first, rest = self.service.prompts, self.service.tokens
        minute.nodes_on = sum(each.nodes_on for each in changes.values())
        minute.nodes_taken = sum(each.nodes_taken for each in changes.values())
        minute.prompt_nodes_taken = changes[first.phase].nodes_taken
        minute.prompt_units, minute.token_units = changes[first.phase].serving, changes[rest.phase].serving
        groups = _GroupCounts(
            changes[first.phase].serving * first.groups_per_unit,
            changes[rest.phase].serving * rest.groups_per_unit,
            changes[first.phase].serving,
        )
        self._switch(minute, changes[rest.phase], drain_s)
        for _ in range(round(MINUTE_S / slice_s)):
            finished = self._compute_prompts(minute, groups, minute.asked * slice_s / MINUTE_S, slice_s)
            self._make_tokens(minute, groups.tokens, finished, slice_s)
            self._drain(minute, slice_s)
        if first.phase == rest.phase:
            return Load({rest.phase: max(min(minute.prompt_busy, minute.prompt_load), minute.kv_used)})
        return Load({first.phase: minute.prompt_busy, rest.phase: minute.kv_used})

    def _switch(self, minute: Minute, change: UnitCounts, drain_s: float) -> None:
        """Take units out of service: stopped units drain their requests, and requests of failed units start again."""
        before = change.serving + change.stopped + change.lost
        if not before:
            return
        kept, lost = (self.requests * each / before for each in (change.stopped, change.lost))
        if change.stopped:
            groups = change.stopped * self.service.tokens.groups_per_unit
            self.draining.append(_Draining(groups, kept / groups, drain_s))
        again = self.service.request.kv * (1 - self.service.cache_hit_rate)  # tokens to compute again, less cache hits
        minute.restarted += lost
        self.prompts += lost
        self.steps += lost * again / self.service.request.computed * self._steps_per_prompt
        self.requests -= kept + lost

    def _compute_prompts(self, minute: Minute, groups: _GroupCounts, asked: float, slice_s: float) -> float:
        """Admit as many of the `asked` new requests as units have room for, and compute prompts for `slice_s` seconds.

        Requests without room are refused. Return how many prompts finish.
        """
        room = groups.tokens * self.service.tokens.max_admitted - self.requests - self.prompts
        admitted = min(asked, max(room, 0.0))
        minute.refused += asked - admitted
        arrivals = admitted * self._steps_per_prompt
        prompts, steps = self.prompts + admitted, self.steps + arrivals
        if not groups.prompts:
            minute.prompt_busy, minute.prompt_wait, minute.prompt_load = 0.0, inf, inf
            self.steps = steps
        elif self.service.turns is None:
            self.steps = min(self._compute_steps(minute, groups.prompts, arrivals / slice_s, slice_s), steps)
        else:
            self.steps = min(self._take_turns(minute, self.service.turns, groups, arrivals / slice_s, slice_s), steps)
        finished = prompts * (1 - self.steps / steps) if steps else 0.0
        self.prompts = minute.queued_prompts = prompts - finished
        minute.prompts += finished
        return finished

    @property
    def _steps_per_prompt(self) -> float:
        """The number of steps that a prompt takes. In mixed units it is the prompt's number of pieces."""
        turns, side = self.service.turns, self.service.prompts
        return turns.pieces_per_prompt if turns else self.service.request.computed / side.step_tokens

    def _compute_steps(self, minute: Minute, groups: int, arrivals: float, slice_s: float) -> float:
        """Let `groups` attention groups compute prompts for `slice_s` seconds, and write load and wait into `minute`.

        Return how many prefill steps of all groups are still to do. `arrivals` is in steps a second, over all groups.
        """
        minute.prompt_seconds = seconds = self.service.prompts.step_seconds
        each = next_steps(self.steps / groups, arrivals / groups, 1 / seconds, slice_s)
        minute.prompt_busy = busy = busy_share(each)
        minute.prompt_wait = (each - busy) / busy * seconds if busy else 0.0
        minute.prompt_load = arrivals / groups * seconds
        return each * groups

    def _take_turns(self, minute: Minute, turns: Turns, groups: _GroupCounts, arrivals: float, slice_s: float) -> float:
        """Let mixed units alternate between prompts and tokens for `slice_s` seconds.

        Return the number of prompt pieces left.

        `arrivals` is in pieces a second, over all units.
        """
        units, batch = groups.units, min(self.requests / groups.tokens, self.service.tokens.max_requests)
        token_step_seconds = self.service.tokens.step_seconds(batch)
        turn = next_pieces(turns, self.steps / units, arrivals / units, token_step_seconds, slice_s)
        minute.prompt_seconds, minute.prompt_busy, minute.prompt_wait = turn.seconds, turn.busy, turn.mean_wait_s
        minute.prompt_load = arrivals / units / turns.rate(-1, token_step_seconds)
        self.computing = turn.computing
        return turn.pieces * units

    def _make_tokens(self, minute: Minute, groups: int, arrivals: float, slice_s: float) -> None:
        """Make tokens for `slice_s` seconds for the requests in the batches of `groups` attention groups.

        The other requests wait. Mixed units make no tokens while they compute prompts. `arrivals` is the number of
        requests whose prompts have just been finished.
        """
        side, output, share = self.service.tokens, self.service.request.output, max(1 - self.computing, LEAST_SHARE)
        before, self.requests = self.requests, self.requests + arrivals
        if not groups:
            minute.requests, minute.kv_used, minute.queued_requests = 0.0, 0.0, self.requests
            return
        own = share * slice_s
        each = min(next_requests(side, before / groups, arrivals / groups / own, output, own), self.requests / groups)
        minute.tokens += (self.requests - each * groups) * output
        self.requests = each * groups
        batch = min(each, side.max_requests)
        minute.requests, minute.queued_requests = batch, (each - batch) * groups
        minute.kv_used = batch * self.service.request.kv / side.kv_room
        minute.tpot = side.seconds(batch) / share * (each / batch if batch else 1.0)

    def _drain(self, minute: Minute, slice_s: float) -> None:
        """Make tokens for the requests of draining units for `slice_s` seconds.

        Count the requests cut at a drain's end.
        """
        for each in self.draining:
            left = next_requests(self.service.tokens, each.requests, 0.0, self.service.request.output, slice_s)
            minute.tokens += (each.requests - left) * each.groups * self.service.request.output
            each.requests, each.seconds = left, each.seconds - slice_s
            if not minute.token_units:  # if units serve, `_make_tokens` has set `tpot`
                minute.tpot = self.service.tokens.seconds(left)
            if each.seconds <= 0:
                minute.cut += each.requests * each.groups
        self.draining = [each for each in self.draining if each.seconds > 0]

"""One call of `tidemill simulate`: a day as flows, or a trace one by one; checked before anything is planned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from planner.cost.overload import SEE_SIMULATE
from planner.facts.calendar import is_day
from planner.plan.estimated import Estimated
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import for_example
from planner.spec.check import ResolvedSpec
from runtime.gateway.ranks.router import Policy
from stacks.simulator.columns import Column, Variant, mistakes_in_columns, play_columns, read_variants
from stacks.simulator.document import simulation_json
from stacks.simulator.failures import Failure, read_failures
from stacks.simulator.plot import draw_days, draw_traces, require_plot
from stacks.simulator.replay_output import replay_json, replay_text
from stacks.simulator.replayed import ReplayColumn, play_traces
from stacks.simulator.text import simulation_text
from stacks.simulator.trace import TraceRequest, read_trace, read_window

__all__ = ["Call", "Played", "read_call"]

ALL = (0.0, float("inf"))
Tell = Callable[[str, float], None]
T = TypeVar("T")


class Played(Protocol):
    """What was played, in each form that it may be wanted in."""

    @property
    def warnings(self) -> Sequence[Finding]:
        """What the plan warns of."""
        ...

    @property
    def failed(self) -> Sequence[Finding]:
        """Why columns are missing: they cannot be planned."""
        ...

    def text(self) -> str:
        """Return it for people."""
        ...

    def document(self) -> dict[str, Any]:
        """Return it for programs."""
        ...

    def draw(self, path: Path) -> None:
        """Draw it into a file."""
        ...


@dataclass(frozen=True)
class _Days:
    columns: tuple[Column, ...]
    failed: tuple[Finding, ...]

    @property
    def warnings(self) -> Sequence[Finding]:
        return _warnings(self.columns[0].day.plan)

    def text(self) -> str:
        return simulation_text(self.columns)

    def document(self) -> dict[str, Any]:
        return simulation_json(self.columns)

    def draw(self, path: Path) -> None:
        draw_days(self.columns, path)


@dataclass(frozen=True)
class _Traces:
    columns: tuple[ReplayColumn, ...]
    failed: tuple[Finding, ...]

    @property
    def warnings(self) -> Sequence[Finding]:
        return _warnings(self.columns[0].plan)

    def text(self) -> str:
        return replay_text(self.columns)

    def document(self) -> dict[str, Any]:
        return replay_json(self.columns)

    def draw(self, path: Path) -> None:
        draw_traces(self.columns, path)


@dataclass(frozen=True)
class Call:
    """What is asked."""

    variants: tuple[Variant, ...]
    failures: tuple[Failure, ...]
    date: str | None
    trace: tuple[TraceRequest, ...] | None
    window: tuple[float, float]
    policies: tuple[Policy, ...]

    def play(self, spec: ResolvedSpec, tell: Tell) -> Played:
        """Play what is asked; `tell` hears what is played and the share of all that is done."""
        if self.trace is None:
            return _Days(*play_columns(spec, self.variants, self.failures, tell, self.date))
        return _Traces(*play_traces(spec, self.variants, self.policies, self.trace, self.window, tell))


def read_call(arguments: Any, spec: ResolvedSpec) -> Call:
    """Return what the command line asks of `spec`.

    Raises CallError for what is wrong with it, and then with columns too; and where nothing can draw.
    """
    _require_apart(arguments)
    if arguments.plot:
        require_plot(arguments.plot)
    wrong: list[Finding] = []
    variants = read_variants(arguments.variants, wrong)
    failures = _read(read_failures, arguments.fail, wrong) or ()
    date = _read(_read_date, arguments.date, wrong) if arguments.date else None
    window = _read(read_window, arguments.window, wrong) if arguments.window else None
    trace = _read(read_trace, arguments.trace, wrong) if arguments.trace else None
    if wrong:
        raise CallError([*wrong, *mistakes_in_columns(spec, variants)])
    policies = tuple(dict.fromkeys(map(Policy, arguments.balancer or [Policy.BALANCED.value])))
    return Call(variants, failures, date, trace, window or ALL, policies)


def _warnings(plan: Estimated) -> Sequence[Finding]:
    """Return the plan's warnings. What they say of `tidemill simulate` is for who has not called it yet."""
    return [replace(each, fix=str(each.fix).removesuffix(SEE_SIMULATE)) for each in plan.warnings]


def _read(read: Callable[[Any], T], written: Any, wrong: list[Finding]) -> T | None:
    """Return what `read` makes of an option; None where it is wrong, and then why is in `wrong`."""
    try:
        return read(written)
    except CallError as error:
        wrong += error.findings
        return None


def _require_apart(arguments: Any) -> None:
    """Raise CallError for options of traces without one, and for those of days with one."""
    rule, fix = "R415 must come with --trace", "give a --trace, or leave it out"
    wrong = [
        Finding(f"--{name}", None, rule, "without a trace, a day is simulated as flows and not as single requests", fix)
        for name in ("window", "balancer")
        if getattr(arguments, name) and not arguments.trace
    ]
    rule, reason = "R416 must come without --trace", "while a trace is played, all units are on all the time"
    wrong += [
        Finding(f"--{name}", None, rule, reason, "leave one of them out")
        for name in ("fail", "date")
        if getattr(arguments, name) and arguments.trace
    ]
    if wrong:
        raise CallError([each.at("tidemill simulate") for each in wrong])


def _read_date(written: str) -> str:
    """Return a date or a weekday. Raises CallError for anything else."""
    if is_day(written):
        return written
    rule, reason = "R417 must be a date as 2026-12-24, or a weekday", "the calendar has no other days"
    raise CallError([Finding("--date", written, rule, reason, for_example("saturday")).at("tidemill simulate")])

"""One call of `tidemill simulate`, checked before anything is planned. It plays a day as flows, or a trace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from planner.command.printed import require_output
from planner.compiler import Compiled
from planner.facts.calendar import is_day
from planner.facts.trace import TraceRequest
from planner.plan.user_input import named_files
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import for_example
from planner.rules.overload import SEE_SIMULATE
from planner.spec.resolved import ResolvedSpec
from runtime.gateway.ranks.router import Policy
from stacks.simulator.flows.day import DayColumn, play_days
from stacks.simulator.flows.failures import Failure, read_failures
from stacks.simulator.report.day_figures import day_page, draw_days
from stacks.simulator.report.day_json import simulation_json
from stacks.simulator.report.day_text import simulation_text
from stacks.simulator.report.plot import draw_traces, require_plot
from stacks.simulator.report.trace_report import replay_json, replay_text
from stacks.simulator.requests.columns import ReplayColumn, play_traces
from stacks.simulator.requests.trace import read_trace, read_window
from stacks.simulator.variants import Variant, find_variant_mistakes, read_variants

__all__ = ["Call", "SimulationResult", "read_call"]

WHOLE_TRACE = (0.0, float("inf"))
OnProgress = Callable[[str, float], None]
T = TypeVar("T")


class SimulationResult(Protocol):
    """The result of a simulation, which can be shown as a text, a JSON document or a picture."""

    @property
    def warnings(self) -> Sequence[Finding]:
        """The warnings of the plans that were simulated."""
        ...

    @property
    def failed(self) -> Sequence[Finding]:
        """The errors of variants that cannot be planned. They have no column in the result."""
        ...

    def text(self) -> str:
        """Return the result as a table for people."""
        ...

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON document."""
        ...

    def draw(self, path: Path) -> None:
        """Draw the result into the file at `path`."""
        ...

    def page(self) -> str:
        """Return the plan's HTML page, which begins with the result."""
        ...


@dataclass(frozen=True)
class _Days:
    columns: tuple[DayColumn, ...]
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

    def page(self) -> str:
        return day_page(self.columns)


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

    def page(self) -> str:
        raise AssertionError("R416 refuses --report beside --trace")


@dataclass(frozen=True)
class Call:
    """The checked options of `tidemill simulate`."""

    variants: tuple[Variant, ...]
    failures: tuple[Failure, ...]
    date: str | None
    trace: tuple[TraceRequest, ...] | None
    window: tuple[float, float]
    policies: tuple[Policy, ...]

    def play(self, spec: ResolvedSpec, on_progress: OnProgress) -> SimulationResult:
        """Return the result of the simulation that the options ask for.

        `on_progress` is called with a column's title and the fraction of the column that is done.
        """
        if self.trace is None:
            return _Days(*play_days(spec, self.variants, self.failures, on_progress, self.date))
        return _Traces(*play_traces(spec, self.variants, self.policies, self.trace, self.window, on_progress))


def read_call(arguments: Any, spec: ResolvedSpec) -> Call:
    """Return the checked options of the command line.

    Raises CallError with every mistake in the options and in the variants, and OutputError for `--plot` if Matplotlib
    is not installed.
    """
    _require_compatible(arguments)
    if arguments.plot:
        require_plot(arguments.plot)
    for path, form in ((arguments.plot, None), (arguments.report, "html")):
        if path:
            require_output(path, arguments, named_files((arguments.spec, spec)), form=form)
    wrong: list[Finding] = []
    variants = read_variants(arguments.variants, wrong)
    failures = _read_option(read_failures, arguments.fail, wrong) or ()
    date = _read_option(_read_date, arguments.date, wrong) if arguments.date else None
    window = _read_option(read_window, arguments.window, wrong) if arguments.window else None
    trace = _read_option(read_trace, arguments.trace, wrong) if arguments.trace else None
    if wrong:
        raise CallError([*wrong, *find_variant_mistakes(spec, variants)])
    policies = tuple(dict.fromkeys(map(Policy, arguments.balancer or [Policy.BALANCED.value])))
    return Call(variants, failures, date, trace, window or WHOLE_TRACE, policies)


def _warnings(plan: Compiled) -> Sequence[Finding]:
    """Return the plan's warnings, without the advice to call `tidemill simulate`: the user has just called it."""
    return [replace(each, fix=str(each.fix).removesuffix(SEE_SIMULATE)) for each in plan.plan.warnings]


def _read_option(read: Callable[[Any], T], written: Any, wrong: list[Finding]) -> T | None:
    """Return an option's value, read by `read`. If it is wrong, add the mistakes to `wrong` and return None."""
    try:
        return read(written)
    except CallError as error:
        wrong += error.findings
        return None


def _require_compatible(arguments: Any) -> None:
    """Raise CallError for options that need a trace and have none, or that a trace excludes."""
    rule, fix = "R415 must come with --trace", "give a --trace, or leave it out"
    wrong = [
        Finding(f"--{name}", None, rule, "without a trace, a day is simulated as flows and not as single requests", fix)
        for name in ("window", "balancer")
        if getattr(arguments, name) and not arguments.trace
    ]
    rule, always_on = "R416 must come without --trace", "while a trace is played, all units are on all the time"
    reasons = {"fail": always_on, "date": always_on, "report": "the page has a day, and a trace has none"}
    wrong += [
        Finding(f"--{name}", None, rule, reason, "leave one of them out")
        for name, reason in reasons.items()
        if getattr(arguments, name) and arguments.trace
    ]
    if wrong:
        raise CallError([each.at("tidemill simulate") for each in wrong])


def _read_date(written: str) -> str:
    """Return `written` if it is a date or a weekday. Raises CallError otherwise."""
    if is_day(written):
        return written
    rule, reason = "R417 must be a date as 2026-12-24, or a weekday", "the calendar has no other days"
    raise CallError([Finding("--date", written, rule, reason, for_example("saturday")).at("tidemill simulate")])

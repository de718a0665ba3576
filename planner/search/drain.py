"""`drain: auto` as a time: what the lengths of answers and the promised time of a token come to."""

from math import ceil

from planner.facts.seconds import MS_PER_S
from planner.problems.errors import SpecError
from planner.problems.finding import Finding
from planner.schedule.drain import drain_s
from planner.search.decision import Decision
from planner.search.starts import LONGEST_S, as_text
from planner.spec.check import ResolvedSpec, with_values
from planner.spec.undecided import AUTO, is_undecided

__all__ = ["with_drain"]


def with_drain(spec: ResolvedSpec) -> tuple[ResolvedSpec, list[Decision]]:
    """Return `spec` with a drain in place of `auto`. Raises SpecError where lengths or the time of a token are open."""
    schedule, traffic, tpot_ms = spec.written.schedule, spec.written.traffic, spec.written.slo.tpot_ms
    if schedule is None or not is_undecided(schedule.drain):
        return spec, []
    lengths = traffic.output_lengths if traffic else None
    if lengths is None or tpot_ms is None:
        raise SpecError([spec.locate(_open(lengths is None, tpot_ms is None))])
    last = spec.phase(spec.phases[-1])
    found = drain_s(lengths.median, lengths.p99, schedule.answered, last.max_request_tokens, tpot_ms / MS_PER_S)
    written = as_text(min(ceil(found), LONGEST_S))
    why = f"{schedule.answered:.4g} of the answers in flight end within it, at {tpot_ms:g} ms a token"
    return with_values(spec, {"schedule.drain": written}), [Decision("schedule.drain", written, why)]


def _open(no_lengths: bool, no_time: bool) -> Finding:
    missing = [
        *(["traffic.output_lengths"] if no_lengths else []),
        *(["slo.tpot_ms"] if no_time else []),
    ]
    words = " and ".join(missing)
    reason = "auto computes how long answers last, from their lengths and the time per token"
    return Finding(
        "schedule.drain", AUTO, f"S524 needs {words}", reason, f"write {words}, or write a time, such as drain: 10min"
    )

"""The rules of operating points: whole, and within the limits of their phase."""

from collections.abc import Mapping
from typing import Any

from planner.facts.model import Model
from planner.facts.terms import PHASES, Phase
from planner.problems.fix import Fix, for_example, nearest
from planner.spec.operating_point import MAX_TOKENS
from planner.spec.rule import Broken, Rule, declare_in

__all__ = ["RULES"]

RULES: list[Rule] = []
_reads = declare_in(RULES)

# What a rule about the tokens of a request reads beside them: every phase's limit, who wrote one, every point's tokens.
_OF_REQUESTS = (
    *("{phase}.max_request_tokens", "{phase}.name", "model.shapes?", "spec.sections"),
    *(f"{phase}.given?" for phase in PHASES),
    *(f"{phase}.max_request_tokens?" for phase in PHASES),
    *(f"operating_point.{phase}.{key}?" for phase in PHASES for key in ("kv_tokens", "prompt_tokens")),
)


@_reads("operating_point.mixed.prompt_tokens", "operating_point.mixed.output_tokens", "spec.sections")
def answers_have_a_length(_: int, outputs: int | None, sections: frozenset[str]) -> Broken | None:
    """Mixed units divide their time by it; a day's traffic says it too."""
    if outputs is not None or "traffic" in sections:
        return None
    rule = "S561 is required without traffic"
    path = "operating_point.mixed.output_tokens"
    return Broken(rule, "the point has to say how long answers are", for_example("output_tokens: 1000"), path)


@_reads("operating_point.{phase}.requests", "{phase}.max_requests", "{phase}.given", "{phase}.name?")
def requests_are_within_the_limit(
    requests: int, most: int, given: frozenset[str], phase: Phase | None
) -> Broken | None:
    """A rank never works on more."""
    if requests <= most:
        return None
    raised = None if "max_requests" in given or phase is None else {f"{phase}.max_requests": requests}
    return _beyond("S551", "max_requests", most, "no rank works on more at a time", raised)


@_reads("operating_point.{phase}.kv_tokens", *_OF_REQUESTS)
def kv_is_within_the_limit(kv_tokens: int, most: int, *limits: Any) -> Broken | None:
    """A request never has more."""
    return _too_long(kv_tokens, most, *limits)


@_reads("operating_point.{phase}.prompt_tokens", *_OF_REQUESTS)
def prompts_are_within_the_limit(prompt_tokens: int, most: int, *limits: Any) -> Broken | None:
    """A request never has more."""
    return _too_long(prompt_tokens, most, *limits)


@_reads("operating_point.{phase}.step_tokens", "{phase}.max_batch_tokens", "{phase}.given", "{phase}.name?")
def steps_are_within_the_limit(
    step_tokens: int, most: int, given: frozenset[str], phase: Phase | None
) -> Broken | None:
    """A rank never computes more in one step."""
    if step_tokens <= most:
        return None
    raised = None if "max_batch_tokens" in given or phase is None else {f"{phase}.max_batch_tokens": step_tokens}
    return _beyond("S553", "max_batch_tokens", most, "no rank computes more prompt tokens in one step", raised)


def _too_long(
    tokens: int, most: int, phase: Phase, model: Model | None, sections: frozenset[str], *others: Any
) -> Broken | None:
    """A limit that is written in any phase holds in all of them (S505). A default is raised to the longest point."""
    given, limits, lengths = others[:3], others[3:6], others[6:]
    written = {
        each: limit
        for each, keys, limit in zip(PHASES, given, limits, strict=True)
        if limit and "max_request_tokens" in (keys or ())
    }
    most = written.get(phase) or min(written.values(), default=most)
    if tokens <= most:
        return None
    if written:
        return _beyond("S552", "max_request_tokens", most, "no request is longer")
    positions = model.max_position_embeddings if model else MAX_TOKENS
    if tokens > positions:
        return _beyond("S552", "max_position_embeddings", positions, "the model has no positions beyond these")
    longest = max(each for each in (tokens, *lengths) if each and each <= positions)
    raised = {f"{each}.max_request_tokens": longest for each in PHASES if each in sections}
    return _beyond("S552", "max_request_tokens", most, "no request is longer", raised)


def _beyond(number: str, limit: str, most: int, reason: str, raised: Mapping[str, int] | None = None) -> Broken:
    """Say that a load is beyond its limit. Where nobody wrote the limit, the load is kept and the limit `raised`."""
    if raised is None:
        return Broken(f"{number} must be at most {limit} ({most})", reason, nearest(most))
    words = " and ".join(f"{path}: {value}" for path, value in raised.items())
    return Broken(f"{number} must be at most {limit} ({most}, its default)", reason, Fix(f"write {words}", (raised,)))

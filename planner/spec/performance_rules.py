"""The rules of operating points: within the limits of their phase, and of a phase that there is."""

from collections.abc import Iterator

from planner.problems.fix import nearest, removal
from planner.spec.rule import Broken, Rule, declare_in

__all__ = ["RULES"]

RULES: list[Rule] = []
_reads = declare_in(RULES)


@_reads("version", "operating_point.given", "spec.sections")
def points_are_of_phases(_: int, given: frozenset[str], sections: frozenset[str]) -> Iterator[Broken]:
    """A point of a phase that the spec does not have predicts nothing."""
    for phase in sorted(given & {"prefill", "decode", "mixed"} - sections):
        path = f"operating_point.{phase}"
        yield Broken(f"S550 must come with {phase}", "there is no such phase to predict", removal(path), path, None)


@_reads("operating_point.{phase}.requests", "{phase}.max_requests")
def requests_are_within_the_limit(requests: int, most: int) -> Broken | None:
    """A rank never works on more."""
    if requests <= most:
        return None
    return Broken(f"S551 must be at most max_requests ({most})", "no rank works on more at a time", nearest(most))


@_reads("operating_point.{phase}.kv_tokens", "{phase}.max_request_tokens")
def kv_is_within_the_limit(kv_tokens: int, most: int) -> Broken | None:
    """A request never has more."""
    return _too_long(kv_tokens, most)


@_reads("operating_point.{phase}.prompt_tokens", "{phase}.max_request_tokens")
def prompts_are_within_the_limit(prompt_tokens: int, most: int) -> Broken | None:
    """A request never has more."""
    return _too_long(prompt_tokens, most)


@_reads("operating_point.{phase}.step_tokens", "{phase}.max_batch_tokens")
def steps_are_within_the_limit(step_tokens: int, most: int) -> Broken | None:
    """A rank never computes more in one step."""
    if step_tokens <= most:
        return None
    rule = f"S553 must be at most max_batch_tokens ({most})"
    return Broken(rule, "no rank computes more prompt tokens in one step", nearest(most))


def _too_long(tokens: int, most: int) -> Broken | None:
    if tokens <= most:
        return None
    return Broken(f"S552 must be at most max_request_tokens ({most})", "no request is longer", nearest(most))

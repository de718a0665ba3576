"""The rules of operating points: complete, within their phase's limits, and consistent with the traffic."""

from collections.abc import Iterator, Mapping

from planner.facts.terms import PHASES, Phase
from planner.problems.finding import Finding
from planner.problems.fix import Fix, for_example, nearest
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues
from planner.spec.operating_point import MAX_TOKENS

LENGTHS = tuple(f"operating_point.{phase}.{key}" for phase in PHASES for key in ("kv_tokens", "prompt_tokens"))


def mixed_point_has_answers(c: ValidValues) -> Iterator[Finding]:
    """Reject a mixed operating point whose `kv_tokens` cover only the prompt: KV holds half of the answer too."""
    kv_tokens: int = c["operating_point.mixed.kv_tokens"]
    prompt_tokens: int = c["operating_point.mixed.prompt_tokens"]
    if kv_tokens > prompt_tokens or "traffic" in c.sections:
        return
    rule = f"S504 must be more than prompt_tokens ({prompt_tokens}) without traffic"
    reason = "half of an answer comes on top of the prompt, on average"
    fix = for_example(f"kv_tokens: {prompt_tokens + 500}, for answers of 1,000 tokens")
    yield Finding("operating_point.mixed.kv_tokens", kv_tokens, rule, reason, fix)


def point_requests_fit_limit(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject an operating point with more `requests` than the phase's `max_requests`."""
    yield from _check_limit(c, phase, "requests", "max_requests", "no rank works on more at a time")


def point_tokens_fit_limit(c: ValidValues, path: str) -> Iterator[Finding]:
    """Reject an operating point whose mean request or prompt is longer than `max_request_tokens`.

    A limit written in one phase applies to all (S505). If none is written, offer to raise it to the longest point.
    """
    tokens: int = c[path]
    own = f"{path.split('.')[1]}.max_request_tokens"
    default: int = c[own]
    limits = [f"{phase}.max_request_tokens" for phase in PHASES]
    written: dict[str, int] = {limit: c[limit] for limit in limits if c.is_given(limit) and c.get(limit)}
    most = written.get(own) or min(written.values(), default=default)
    positions = model.max_position_embeddings if (model := c.get("model.shapes")) else MAX_TOKENS
    if tokens <= most:
        return
    if written:
        yield _excess_finding(path, tokens, "max_request_tokens", most, "no request is longer")
    elif tokens > positions:
        reason = "the model has no positions beyond these"
        yield _excess_finding(path, tokens, "max_position_embeddings", positions, reason)
    else:
        longest = max(each for each in (tokens, *map(c.get, LENGTHS)) if each and each <= positions)
        raised = {limit: longest for limit in limits if limit.split(".")[0] in c.sections}
        yield _excess_finding(path, tokens, "max_request_tokens", most, "no request is longer", raised)


def step_tokens_fit_limit(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject `step_tokens` of an operating point above `max_batch_tokens`, or above the prompts of `max_requests`."""
    reason = "no rank computes more prompt tokens in one step"
    yield from _check_limit(c, phase, "step_tokens", "max_batch_tokens", reason)
    point, requests = f"operating_point.{phase}", c[f"{phase}.max_requests"]
    tokens, prompt = c[f"{point}.step_tokens"], c[f"{point}.prompt_tokens"]
    if requests * prompt < tokens <= c[f"{phase}.max_batch_tokens"]:
        reason = f"a rank works on at most {requests} prompts of {prompt:,} tokens at once"
        yield _excess_finding(f"{point}.step_tokens", tokens, "max_requests x prompt_tokens", requests * prompt, reason)


def _check_limit(c: ValidValues, phase: Phase, field: str, limit: str, reason: str) -> Iterator[Finding]:
    """Yield a finding if the `field` of the phase's operating point is above the phase's own field `limit`."""
    path = f"operating_point.{phase}.{field}"
    asked: int = c[path]
    most: int = c[f"{phase}.{limit}"]
    if asked > most:
        raised = None if c.is_given(f"{phase}.{limit}") else {f"{phase}.{limit}": asked}
        yield _excess_finding(path, asked, limit, most, reason, raised)


def _excess_finding(
    path: str, value: int, limit: str, most: int, reason: str, raised: Mapping[str, int] | None = None
) -> Finding:
    """Return the finding for the `value` at `path`, which is above `most`, the value of the field `limit`.

    The fix lowers the value to `most`. If nobody wrote the limit, the fix instead writes `raised`: path -> value.
    """
    if raised is None:
        return Finding(path, value, f"S504 must be at most {limit} ({most})", reason, nearest(most))
    fix = Fix(f"write {' and '.join(f'{each}: {number}' for each, number in raised.items())}", (raised,))
    return Finding(path, value, f"S504 must be at most {limit} ({most}, its default)", reason, fix)


RULES = (
    Rule("S504", "fields", mixed_point_has_answers),
    Rule("S504", "fields", point_requests_fit_limit, PHASES),
    Rule("S504", "resolved", point_tokens_fit_limit, LENGTHS),
    Rule("S504", "fields", step_tokens_fit_limit, PHASES),
)

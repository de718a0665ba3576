"""The mean length of a request, for a phase without an operating point.

The mean is the tokens of a day over its requests, both from `traffic`. If the spec has no number of requests, a request
is assumed to be half as long as the longest, and decisions that depend on this assumption say so.
"""

from dataclasses import dataclass

from planner.facts.terms import Phase
from planner.spec.schema import Spec

OUTPUT_SHARE = 1 / 3  # of a request's tokens, in mixed units without traffic; assumed


@dataclass(frozen=True)
class RequestLengths:
    """The mean lengths of a request, in tokens."""

    prompt: int
    output: int
    kv: int  # on average while the output is generated: the prompt and half of the answer
    are_assumed: bool

    def kv_within(self, kv_room: int | None, max_requests: int) -> int:
        """Return the mean KV of a request, in tokens.

        An assumed mean is at most the KV that a GPU has room for if it holds `max_requests` requests. `kv_room` is the
        number of tokens of KV that the GPU holds, or None if unknown.
        """
        return self.kv if kv_room is None or not self.are_assumed else min(self.kv, max(kv_room // max_requests, 1))


def request_lengths(spec: Spec, phase: Phase) -> RequestLengths:
    """Return the mean lengths of a request in `phase`, for a spec without an operating point of that phase."""
    traffic = spec.traffic
    if traffic is not None and traffic.requests is not None:
        prompt, output = (
            max(round(tokens / traffic.requests), 1) for tokens in (traffic.input_tokens, traffic.output_tokens)
        )
        return RequestLengths(prompt, output, prompt + output // 2, are_assumed=False)
    half = max(spec.phase(phase).max_request_tokens // 2, 1)
    share = traffic.output_tokens / (traffic.input_tokens + traffic.output_tokens) if traffic else OUTPUT_SHARE
    output = max(round(half * share), 1)
    prompt = max(half - output, 1) if phase == "mixed" else half
    return RequestLengths(prompt, output, half, are_assumed=True)


def describe_assumed_lengths(spec: Spec, *phases: Phase) -> str:
    """Return a clause with the assumed request lengths of `phases` (by default of all); empty if none is assumed."""
    without = [phase for phase in phases or spec.phases if getattr(spec.operating_point, phase) is None]
    assumed = {each: lengths for each in without if (lengths := request_lengths(spec, each)).are_assumed}
    if not assumed:
        return ""
    words = [
        f"prompts of {each.prompt:,} tokens" if phase == "prefill" else f"requests of {each.kv:,} KV tokens"
        for phase, each in assumed.items()
    ]
    missing = " or ".join(f"operating_point.{phase}" for phase in assumed)
    return f"assumes {' and '.join(words)} (half of max_request_tokens, without traffic.requests or {missing})"

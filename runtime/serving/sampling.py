"""Draws the next token of one request, on the host. `batched_sampling.py` draws by the same rules on a device.

    logits -> what is allowed -> bias, no stop yet -> penalties -> temperature -> top_k -> top_p -> a draw
       `----> logprobs                                   `-> the best, at temperature 0

A draw depends on the request's seed, its position and, with penalties, on the tokens before it. So a request continues
in the same way on any rank. Logprobs are the model's own: they come from the logits before penalties and temperature.

Sources: OpenAI API reference, "Frequency and presence penalties"; Keskar et al., "CTRL" (arXiv 1909.05858) section 4.1,
for the repetition's, with transformers' rule for negative logits. These follow vLLM: the order; the tokens that a
penalty counts (generated ones, for repetition the prompt's too); what `min_tokens` holds back; the logits that logprobs
come from (`raw_logprobs`).
"""

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.errors import RequestFailure
from runtime.protocol.messages import FinishReason, Logprobs, Sampling

__all__ = ["NUM_BEST", "draw_key", "finish_reason", "logprobs", "needs_only_logits", "sample"]

NUM_BEST = 1024  # assumed: top_p seldom keeps more; finding them takes a fifteenth of the time of a sort of 129,280


def sample(
    logits_V: Tensor,
    sampling: Sampling,
    position: int,
    generated: Sequence[int] = (),
    prompt_ids: Sequence[int] = (),
    allowed_V: Tensor | None = None,
) -> int:
    """Return the id of the token drawn to follow `position`, in a request with the given prompt and `generated` tokens.

    `allowed_V` is `[vocab_size]` of bool, or None if every token may come. Raises RequestFailure if the logits are not
    finite, or no token is left.
    """
    _check_finite(logits_V)
    if allowed_V is not None:
        logits_V = logits_V.masked_fill(~allowed_V, -torch.inf)
    logits_V = _add_bias(logits_V, sampling)
    logits_V = _forbid_early_stop(logits_V, sampling, len(generated))
    logits_V = _penalise_repetition(logits_V, sampling, prompt_ids, generated)
    logits_V = _penalise_frequency(logits_V, sampling, generated)
    if allowed_V is not None and logits_V.max() == -torch.inf:
        raise RequestFailure("no token is left that may come next")
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    below_best_V = logits_V.double() - logits_V.max()  # so that no temperature or top_p, however small, makes a NaN
    scores_V = _keep_top_k(below_best_V / sampling.temperature, sampling.top_k)
    probabilities_V = _keep_top_p(scores_V.softmax(-1), sampling.top_p)
    generator = torch.Generator().manual_seed(draw_key(sampling.seed, position))
    return int(torch.multinomial(probabilities_V, 1, generator=generator))


def draw_key(seed: int, position: int) -> int:
    """Return the random seed of a request's draw at this position, from 0 to 2^63 - 1."""
    return hash((seed, position)) & (2**63 - 1)


def needs_only_logits(sampling: Sampling, num_generated: int) -> bool:
    """Return whether a draw depends on logits alone: no penalties, bias or schema, and `min_tokens` is reached."""
    has_penalty = sampling.repetition_penalty != 1 or sampling.frequency_penalty != 0 or sampling.presence_penalty != 0
    has_wish = bool(sampling.logit_bias) or sampling.json_schema is not None or num_generated < sampling.min_tokens
    return not has_penalty and not has_wish


def logprobs(logits_V: Tensor, token_id: int, sampling: Sampling) -> Logprobs | None:
    """Return the logprobs of the drawn token and of the likeliest tokens; None if the request asks for none."""
    if sampling.num_logprobs is None:
        return None
    logprobs_V = logits_V.log_softmax(-1)
    best = logprobs_V.topk(min(sampling.num_logprobs, len(logprobs_V)))
    return Logprobs(logprobs_V[token_id].item(), list(zip(best.indices.tolist(), best.values.tolist(), strict=True)))


def finish_reason(token_id: int, num_generated: int, sampling: Sampling) -> FinishReason | None:
    """Return "stop" or "length" if the request ends with this token; None if it goes on.

    The token is the request's `num_generated`-th.
    """
    if token_id in sampling.stop_ids:
        return "stop"
    return "length" if num_generated >= sampling.max_tokens else None


def _check_finite(logits_V: Tensor) -> None:
    """Raises RequestFailure if a logit is NaN or infinite: nothing can be drawn, and no message can carry its logprob.

    Such logits may come from another rank's KV.
    """
    if not all(map(math.isfinite, logits_V.aminmax())):
        raise RequestFailure("the model's logits are not finite numbers")


def _add_bias(logits_V: Tensor, sampling: Sampling) -> Tensor:
    """Return the logits plus the bias of each token that has one, [vocab_size]."""
    if not sampling.logit_bias:
        return logits_V
    tokens = torch.tensor(list(sampling.logit_bias))
    return logits_V.index_add(0, tokens, torch.tensor(list(sampling.logit_bias.values()), dtype=logits_V.dtype))


def _forbid_early_stop(logits_V: Tensor, sampling: Sampling, num_generated: int) -> Tensor:
    """Return the logits, with -inf for the tokens that would end the text before it has `min_tokens`, [vocab_size].

    Raises RequestFailure if every token would.
    """
    if num_generated >= sampling.min_tokens:
        return logits_V
    stops = [token_id for token_id in sampling.stop_ids if 0 <= token_id < len(logits_V)]
    logits_V = logits_V.index_fill(0, torch.tensor(stops, dtype=torch.long), -torch.inf)
    if logits_V.max() == -torch.inf:
        raise RequestFailure("every token of the vocabulary would end the text before min_tokens")
    return logits_V


def _penalise_repetition(
    logits_V: Tensor, sampling: Sampling, prompt_ids: Sequence[int], generated: Sequence[int]
) -> Tensor:
    """Return the logits after the repetition penalty, [vocab_size].

    For each token already in the prompt or the answer, a positive logit is divided by the penalty and a negative one
    multiplied by it.
    """
    if sampling.repetition_penalty == 1:  # otherwise each token would cost a pass over the prompt
        return logits_V
    tokens = torch.tensor(list({*prompt_ids, *generated}), dtype=torch.long)
    of_seen = logits_V[tokens]
    factors = torch.where(of_seen < 0, sampling.repetition_penalty, 1 / sampling.repetition_penalty)
    return logits_V.index_copy(0, tokens, of_seen * factors)


def _penalise_frequency(logits_V: Tensor, sampling: Sampling, generated: Sequence[int]) -> Tensor:
    """Return the logits, lowered for tokens that the answer has already.

    The formula is logit - count x frequency_penalty - (count > 0) x presence_penalty, with the token's count in
    `generated`.
    """
    if not generated or sampling.frequency_penalty == sampling.presence_penalty == 0:
        return logits_V
    counts = Counter(generated)
    tokens = torch.tensor(list(counts))
    times = torch.tensor(list(counts.values()), dtype=logits_V.dtype)
    return logits_V.index_add(0, tokens, -(times * sampling.frequency_penalty + sampling.presence_penalty))


def _keep_top_k(scores_V: Tensor, top_k: int) -> Tensor:
    """Return the `top_k` highest scores, and scores equal to the last of them; -inf for all others. [vocab_size]."""
    if not 0 < top_k < len(scores_V):
        return scores_V
    return scores_V.masked_fill(scores_V < scores_V.topk(top_k).values[-1], -torch.inf)


def _keep_top_p(probabilities_V: Tensor, top_p: float) -> Tensor:
    """Return the probabilities of the fewest most likely tokens that add up to at least `top_p`; 0 for all others.

    First only the best `NUM_BEST` are sorted: a sort of 129,280 takes longer than the rest of the draw. Both sorts add
    up the same numbers in the same order, so they keep the same tokens. All are sorted only if `NUM_BEST` are too few,
    or if equal probabilities lie on both sides of the last token that is kept.
    """
    if top_p == 1:
        return probabilities_V
    ordered, order = probabilities_V.topk(min(NUM_BEST, len(probabilities_V)))
    num_kept = int((~_mark_dropped(ordered, top_p)).sum())
    if num_kept == len(ordered) or ordered[num_kept - 1] == ordered[num_kept]:
        ordered, order = probabilities_V.sort(descending=True)
    return torch.zeros_like(probabilities_V).scatter(-1, order, ordered.masked_fill(_mark_dropped(ordered, top_p), 0.0))


def _mark_dropped(ordered: Tensor, top_p: float) -> Tensor:
    """Return for each probability whether it is dropped, because the larger ones before it add up to `top_p`.

    `ordered` is sorted from the largest probability down.
    """
    return ordered.cumsum(-1) - ordered >= top_p

"""Drawing the next token of one request.

    logits -> penalties -> temperature -> top_k -> top_p -> a draw       (temperature 0: penalties -> the best)

The draw at a position depends on the request's seed, that position and, under penalties, on what the request generated
before, so a request continues the same way whichever rank it moves to. Logprobs are not here yet.

Sources: OpenAI API reference, "Frequency and presence penalties"; the order and what is counted (generated tokens, not
the prompt's) are vLLM's.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.messages import FinishReason, Sampling

__all__ = ["finish_reason", "sample"]


def sample(logits_V: Tensor, sampling: Sampling, position: int, generated: Sequence[int] = ()) -> int:
    """The token that follows `position`, where the request has `generated` these tokens before."""
    logits_V = _penalised(logits_V, sampling, generated)
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    below_best_V = logits_V.double() - logits_V.max()  # so that no temperature or top_p, however small, makes a NaN
    scores_V = _best(below_best_V / sampling.temperature, sampling.top_k)
    probabilities_V = _nucleus(scores_V.softmax(-1), sampling.top_p)
    generator = torch.Generator().manual_seed(hash((sampling.seed, position)) & (2**63 - 1))
    return int(torch.multinomial(probabilities_V, 1, generator=generator))


def finish_reason(token_id: int, num_generated: int, sampling: Sampling) -> FinishReason | None:
    """Why the request ends with this token, its `num_generated`-th; None when it goes on."""
    if token_id in sampling.stop_ids:
        return "stop"
    return "length" if num_generated >= sampling.max_tokens else None


def _penalised(logits_V: Tensor, sampling: Sampling, generated: Sequence[int]) -> Tensor:
    """logit - count x frequency_penalty - (count > 0) x presence_penalty."""
    if not generated or sampling.frequency_penalty == sampling.presence_penalty == 0:
        return logits_V
    counts = Counter(generated)
    tokens = torch.tensor(list(counts))
    times = torch.tensor(list(counts.values()), dtype=logits_V.dtype)
    return logits_V.index_add(0, tokens, -(times * sampling.frequency_penalty + sampling.presence_penalty))


def _best(scores_V: Tensor, top_k: int) -> Tensor:
    """Only the `top_k` highest scores, and what equals the last of them."""
    if not 0 < top_k < len(scores_V):
        return scores_V
    return scores_V.masked_fill(scores_V < scores_V.topk(top_k).values[-1], -torch.inf)


def _nucleus(probabilities_V: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most likely tokens whose probability reaches `top_p`."""
    ordered, order = probabilities_V.sort(descending=True)
    beyond = ordered.cumsum(-1) - ordered >= top_p
    return torch.zeros_like(probabilities_V).scatter(-1, order, ordered.masked_fill(beyond, 0.0))

"""Drawing the next token of one request.

The draw at a position depends on the request's seed and that position alone, so a request continues the same way
whichever rank it moves to. Greedy is temperature 0. Penalties, top-k and logprobs are not here yet.
"""

import torch
from torch import Tensor

from runtime.messages import FinishReason, Sampling

__all__ = ["finish_reason", "sample"]


def sample(logits_V: Tensor, sampling: Sampling, position: int) -> int:
    """The token that follows `position`."""
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    below_best_V = logits_V.double() - logits_V.max()  # so that no temperature or top_p, however small, makes a NaN
    probabilities_V = _nucleus((below_best_V / sampling.temperature).softmax(-1), sampling.top_p)
    generator = torch.Generator().manual_seed(hash((sampling.seed, position)) & (2**63 - 1))
    return int(torch.multinomial(probabilities_V, 1, generator=generator))


def finish_reason(token_id: int, num_generated: int, sampling: Sampling) -> FinishReason | None:
    """Why the request ends with this token, its `num_generated`-th; None when it goes on."""
    if token_id in sampling.stop_ids:
        return "stop"
    return "length" if num_generated >= sampling.max_tokens else None


def _nucleus(probabilities_V: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most likely tokens whose probability reaches `top_p`."""
    ordered, order = probabilities_V.sort(descending=True)
    beyond = ordered.cumsum(-1) - ordered >= top_p
    return torch.zeros_like(probabilities_V).scatter(-1, order, ordered.masked_fill(beyond, 0.0))

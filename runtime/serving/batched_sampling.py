"""The next tokens of a step's requests, drawn all at once on the device that has their logits.

    logits [R, V] -> scores -> the best K -> top_k -> top_p -> a draw -> token ids and logprobs to the host
                        `----> all of V, where K are too few --^

`sampling.py` is the reference: it has the same rules and draws on the host, one request after the other. On a CPU the
reference draws every token. On a GPU that would copy 66 MB of logits in a step of 128 requests, and the draws would
take longer than the model. So a GPU draws here. Only two kinds of requests go to the reference: those whose draw needs
more than logits (penalties, a bias, `min_tokens`, a JSON schema), and those whose logits are not finite.

Invariant: a token depends only on its request's sampling, its position and its row of logits.

    noise    Each token of the vocabulary has its own u at each position. Integer arithmetic makes u from seed, position
             and token id, so u does not depend on the other candidates. The token with the largest p / -ln(u) is
             drawn. The reference draws by the same rule, with u from a generator.
    rows     Rows are always computed `ROWS` at a time, because the order in which torch adds up a row depends on the
             tensor's shape.

A score is (logit - best logit) / temperature in FP64, as in the reference. The best K tokens are enough if every token
that top_k and top_p keep scores more than the last of the K, because no other token of the vocabulary scores more than
that one.

Sources: torch, aten/src/ATen/native/Distributions.cpp, `multinomial_out` (the draw); Steele, Lea, Flood, "Fast
Splittable Pseudorandom Number Generators", OOPSLA 2014 (SplitMix64, which makes u).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import msgspec
import torch
from torch import Tensor

from runtime.kernels.device import HostLink
from runtime.protocol.bounds import MAX_LOGPROBS
from runtime.protocol.messages import Logprobs, Sampling
from runtime.serving.sampling import NUM_BEST, draw_key, needs_only_logits

__all__ = ["DrawnToken", "PendingDraw", "draw", "noise"]

ROWS = 32  # assumed: for DeepSeek-V3 these are 33 MB of scores, enough work for a GPU
GAMMA, MIX_1, MIX_2 = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # SplitMix64's, as signed numbers
UNIFORM_BITS = 52  # u is half a step more than a multiple of 2^-52: exact in FP64, and neither 0 nor 1


class PendingDraw(msgspec.Struct, frozen=True):
    """A token to draw after `position`: all that the draw depends on besides logits."""

    sampling: Sampling
    position: int
    num_generated: int


class DrawnToken(msgspec.Struct, frozen=True):
    """A drawn token, and its logprobs if the request wants them."""

    token_id: int
    logprobs: Logprobs | None


class _Settings(NamedTuple):
    """The settings of R draws, as columns [R, 1] on the device. A `top_k` of V keeps all tokens."""

    row: Tensor
    key: Tensor
    top_k: Tensor
    temperature: Tensor
    top_p: Tensor


_Rule: TypeAlias = Callable[[Tensor, _Settings], tuple[Tensor, Tensor]]  # returns tokens [R], and which are decided
_Group: TypeAlias = tuple[_Rule, list[int]]  # a rule, and the numbers of `ROWS` rows; the last row may be repeated


def draw(logits_BV: Tensor, draws: Mapping[int, PendingDraw], link: HostLink) -> dict[int, DrawnToken | Tensor]:
    """Return row -> drawn token for each row in `draws`, or the row's logits if only `sampling.py` can draw its token.

    At most three copies are made to the host: the tokens drawn first, those that needed the whole vocabulary sorted,
    and logits.
    """
    rules = {
        number: _choose_rule(pending.sampling, logits_BV.shape[1])
        for number, pending in draws.items()
        if needs_only_logits(pending.sampling, pending.num_generated)
    }
    drawn = _draw_by_rules(logits_BV, draws, rules, link)
    wide = {
        number: _draw_from_sorted for number, rule in rules.items() if rule is _draw_from_best and number not in drawn
    }
    drawn |= _draw_by_rules(logits_BV, draws, wide, link)
    left = [number for number in draws if number not in drawn]
    whole = link.to_host(logits_BV[left]) if left else ()
    return {**drawn, **dict(zip(left, whole, strict=True))}


def noise(key_R1: Tensor, ids: Tensor) -> Tensor:
    """Return -ln(u) for uniform random numbers u, [R, K], which depend on each row's key and on `ids`, [K] or [R, K].

    The values are draws of the exponential distribution.
    """
    mixed = key_R1 + (ids + 1) * GAMMA
    mixed = (mixed ^ _shift_right(mixed, 30)) * MIX_1
    mixed = (mixed ^ _shift_right(mixed, 27)) * MIX_2
    mixed = mixed ^ _shift_right(mixed, 31)
    uniform = (_shift_right(mixed, 64 - UNIFORM_BITS).double() + 0.5) / 2**UNIFORM_BITS
    return uniform.log_().neg_()


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """Return `bits` shifted right and filled up with zeros. Torch's own shift fills up with the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _choose_rule(sampling: Sampling, vocab_size: int) -> _Rule:
    if sampling.temperature == 0:
        return _take_best
    return _draw_from_all if sampling.top_p == 1 and not 0 < sampling.top_k < vocab_size else _draw_from_best


def _draw_by_rules(
    logits_BV: Tensor, draws: Mapping[int, PendingDraw], rules: Mapping[int, _Rule], link: HostLink
) -> dict[int, DrawnToken]:
    """Draw each row by its rule in `rules`. Return row -> token, without the rows that their rules could not decide."""
    if not rules:
        return {}
    groups = _group_rows(rules)
    numbers = [number for _, of_group in groups for number in of_group]
    settings = _pack_settings([draws[number] for number in numbers], numbers, logits_BV.shape[1], link)
    num_best = MAX_LOGPROBS if any(draws[number].sampling.num_logprobs is not None for number in rules) else None
    settings_on_device = settings.to(logits_BV.device, non_blocking=True)
    lines = link.to_host(_draw_on_device(logits_BV, groups, settings_on_device, num_best)).tolist()
    return {
        number: DrawnToken(int(token_id), _read_logprobs(said, draws[number].sampling.num_logprobs))
        for number, (token_id, is_decided, *said) in zip(numbers, lines, strict=True)
        if is_decided
    }


def _group_rows(rules: Mapping[int, _Rule]) -> list[_Group]:
    groups = []
    for rule in dict.fromkeys(rules.values()):
        numbers = [number for number in rules if rules[number] is rule]
        numbers += numbers[-1:] * (-len(numbers) % ROWS)
        groups += [(rule, numbers[first : first + ROWS]) for first in range(0, len(numbers), ROWS)]
    return groups


def _pack_settings(draws: list[PendingDraw], numbers: list[int], vocab_size: int, link: HostLink) -> Tensor:
    """Return the draws' settings as one tensor [rows, 5] in host memory, to be copied to the device without waiting.

    FP64 numbers are stored as their bits.
    """
    whole, real = [], []
    for number, pending in zip(numbers, draws, strict=True):
        sampling = pending.sampling
        top_k = sampling.top_k if 0 < sampling.top_k < vocab_size else vocab_size
        whole.append((number, draw_key(sampling.seed, pending.position), top_k))
        real.append((sampling.temperature, sampling.top_p))
    settings = link.empty((len(draws), 5), torch.int64)
    settings[:, :3] = torch.tensor(whole)
    settings[:, 3:] = torch.tensor(real, dtype=torch.float64).view(torch.int64)
    return settings


def _draw_on_device(logits_BV: Tensor, groups: list[_Group], settings: Tensor, num_best: int | None) -> Tensor:
    """Return the draws as [rows, columns] in FP64.

    The columns are the token, whether the token is decided, and logprobs if any request asks for them.
    """
    parts = []
    for (rule, _), of_group in zip(groups, settings.split(ROWS), strict=True):
        row, key, top_k = of_group[:, :3].split(1, -1)
        temperature, top_p = of_group[:, 3:].contiguous().view(torch.float64).split(1, -1)
        logits_RV = logits_BV.index_select(0, row.flatten())
        tokens_R, is_decided_R = rule(logits_RV, _Settings(row, key, top_k, temperature, top_p))
        smallest, largest = logits_RV.aminmax(dim=-1)
        columns = [tokens_R[:, None], (is_decided_R & smallest.isfinite() & largest.isfinite())[:, None]]
        columns += [] if num_best is None else _logprobs(logits_RV, tokens_R, num_best)
        parts.append(torch.cat([column.double() for column in columns], -1))
    return torch.cat(parts)


def _take_best(logits_RV: Tensor, settings: _Settings) -> tuple[Tensor, Tensor]:
    """Return each row's most likely token [R], and True for each row [R], since every token is decided.

    Of equally likely tokens, the first is taken.
    """
    tokens_R = logits_RV.argmax(-1)
    return tokens_R, torch.ones_like(tokens_R, dtype=torch.bool)


def _draw_from_all(logits_RV: Tensor, settings: _Settings) -> tuple[Tensor, Tensor]:
    """Return each row's token, drawn from the whole vocabulary [R], and True for each row [R]: all are decided."""
    ids_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    tokens_R = (_scores(logits_RV, settings).exp_() / noise(settings.key, ids_V)).argmax(-1)
    return tokens_R, torch.ones_like(tokens_R, dtype=torch.bool)


def _draw_from_best(logits_RV: Tensor, settings: _Settings) -> tuple[Tensor, Tensor]:
    """Return each row's token, drawn from its best K [R], and whether each token is decided [R].

    A token is decided if all tokens that top_k and top_p keep are among the K.
    """
    if logits_RV.shape[1] <= NUM_BEST:
        return _draw_from_sorted(logits_RV, settings)
    ids_RK = logits_RV.topk(NUM_BEST, sorted=False).indices.sort().values
    logits_RK, order_RK = logits_RV.gather(-1, ids_RK).sort(descending=True, stable=True)
    return _draw_from_candidates(logits_RV, logits_RK, ids_RK.gather(-1, order_RK), settings)


def _draw_from_sorted(logits_RV: Tensor, settings: _Settings) -> tuple[Tensor, Tensor]:
    """Return each row's token [R], drawn after sorting the whole vocabulary, and True for each row [R].

    True means that the token is decided.
    """
    return _draw_from_candidates(logits_RV, *logits_RV.sort(descending=True, stable=True), settings)


def _draw_from_candidates(
    logits_RV: Tensor, logits_RK: Tensor, ids_RK: Tensor, settings: _Settings
) -> tuple[Tensor, Tensor]:
    """Return each row's token, drawn from its K candidates [R], and whether the candidates decided it [R].

    The candidates are sorted: the best first, and equals by id.
    """
    vocab_size, num_candidates = logits_RV.shape[1], logits_RK.shape[1]
    scores_RK = _scores(logits_RK, settings)
    last_R1 = scores_RK.gather(-1, settings.top_k.clamp(max=num_candidates) - 1)
    is_in_top_k_RK = scores_RK >= last_R1
    p_RK = scores_RK.exp().masked_fill_(~is_in_top_k_RK, 0)
    has_top_k_R1 = settings.top_k < vocab_size
    total_R1 = _scores(logits_RV, settings).exp_().sum(-1, keepdim=True)
    p_RK /= torch.where(has_top_k_R1, p_RK.sum(-1, keepdim=True), total_R1)
    is_kept_RK = is_in_top_k_RK & (p_RK.cumsum(-1).sub_(p_RK) < settings.top_p)
    raced_RK = p_RK.masked_fill(~is_kept_RK, 0) / noise(settings.key, ids_RK)
    tokens_R = ids_RK.gather(-1, raced_RK.argmax(-1, keepdim=True)).flatten()
    needed_RK = torch.where(has_top_k_R1, is_in_top_k_RK, is_kept_RK)  # p is a share of what is needed
    may_have_equals_RK = (scores_RK == scores_RK[:, -1:]) & (num_candidates < vocab_size)
    return tokens_R, ~(needed_RK & may_have_equals_RK).any(-1)


def _scores(logits: Tensor, settings: _Settings) -> Tensor:
    """Return (logit - best logit) / temperature, in the shape of `logits` and in FP64.

    The subtraction prevents a NaN at small temperatures.
    """
    return (logits.double() - logits.amax(-1, keepdim=True)).div_(settings.temperature)


def _logprobs(logits_RV: Tensor, tokens_R: Tensor, num_best: int) -> list[Tensor]:
    """Return the chosen tokens' logprobs [R, 1], the best tokens' logprobs and their ids, both [R, `num_best`]."""
    best = logits_RV.topk(min(num_best, logits_RV.shape[1]))
    total_R1 = logits_RV.double().logsumexp(-1, keepdim=True)
    chosen_R1 = logits_RV.gather(-1, tokens_R[:, None])
    return [(chosen_R1 - total_R1).float(), (best.values - total_R1).float(), best.indices]


def _read_logprobs(said: list[float], num_best: int | None) -> Logprobs | None:
    if num_best is None:
        return None
    chosen, best = said[0], said[1:]
    values, ids = best[: len(best) // 2], best[len(best) // 2 :]
    return Logprobs(chosen, [(int(token_id), value) for token_id, value in zip(ids, values, strict=True)][:num_best])

"""One rank's phases without sockets: tests put requests in, and messages are kept.

`Rank` is a mixed rank, or a prefill and a decode rank in one process whose handovers cross at once. The engine, the
scheduler and the phases are the real ones.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from runtime.kv.held_prefix import HeldPrefix
from runtime.kv.index import HASH_BYTES
from runtime.launch import Limits
from runtime.protocol.messages import Abort, Load, Prefill, PrefixHit, Sampling, Token
from runtime.serving.decode import ArrivedRequest, DecodePhase, Hold, Release
from runtime.serving.mixed import MixedPhase
from runtime.serving.prefill import PrefillPhase

__all__ = ["NO_SWITCH", "Crossing", "Limits", "Rank", "Wish", "answer_alone", "tell_alone"]

DECODE = ("127.0.0.1", 1, "ticket")  # where the decode half is said to be, and what it wants to see
NO_METRICS = SimpleNamespace(watch_requests=lambda scheduler: None, count_prompts=lambda num_tokens, num_pairs: None)
NO_SWITCH = SimpleNamespace(votes=lambda: (False, False), turn=lambda lags, fails: None)


@dataclass(frozen=True)
class Wish:
    """A request with its prompt and sampling."""

    id: str
    prompt_ids: list[int]
    sampling: Sampling
    generated: tuple[int, ...] = ()  # by ranks that it lost
    cache_salt: str = ""

    def message(self):
        generated = list(self.generated)
        return Prefill(
            self.id, self.prompt_ids, self.sampling, *DECODE, generated=generated, cache_salt=self.cache_salt
        )


class Crossing:
    """A transfer that keeps latents until the request itself is sent; `deliver` gets both, and the prefix.

    With the first latents, the decode half's `holder` holds what it has of the prefix, and `deliver` gets the rest.
    """

    def __init__(self, offer, deliver, chain=b"", holder=None):
        self._offer, self._deliver, self._holder = offer, deliver, holder
        self._parts = [[] for _ in range(offer.shape[0])]  # of each layer
        self._prefix = HeldPrefix()
        if chain and holder is not None:
            root, *names = (chain[first : first + HASH_BYTES] for first in range(0, len(chain), HASH_BYTES))
            self._prefix = HeldPrefix(root, names)
        self.is_cancelled = False

    def put(self, layer, start, latent_TC):
        assert start == sum(len(part) for part in self._parts[layer])
        if not any(self._parts) and self._prefix.root is not None:
            self._holder.hold(self._prefix, lambda num_tokens: None)
        self._parts[layer].append(latent_TC)

    def finish(self, handover):
        latents = torch.stack([torch.cat(parts) for parts in self._parts])
        assert list(latents.shape) == self._offer.shape
        self._deliver(handover, latents[:, self._prefix.num_tokens :].clone(), self._prefix)

    def cancel(self):
        self.is_cancelled = True
        if self._prefix.root is not None:
            self._holder.release(self._prefix)


class Rank:
    """`kind`: "mixed" or "pair". `said`: request id -> its tokens so far; `done`: the ids of the finished.
    `hits`: the tokens of its prompt that were not computed. Without a `block_digest` there are none.
    """

    def __init__(self, engine, kind, limits, *, deterministic=True, block_digest=b"blocks"):
        kv_cache = SimpleNamespace(dtype="fp32")
        launch = SimpleNamespace(limits=limits, kv_digest="", kv_cache=kv_cache, deterministic=deterministic)
        kinds = {"mixed": [MixedPhase], "pair": [PrefillPhase, DecodePhase]}[kind]
        self.phases = [phase(engine, launch, self, NO_METRICS, block_digest) for phase in kinds]
        self.said: dict[str, list[Token]] = {}
        self.hits: dict[str, int] = {}
        self.loads: list[Load] = []
        self.done: set[str] = set()
        self.num_skipped = 0  # tokens of prompts whose latents did not cross

    @property
    def schedulers(self):
        return [phase._scheduler for phase in self.phases]

    def ask(self, wish):
        self.phases[0].receive(wish.message())

    def abort(self, request_id):
        for phase in self.phases:
            phase.receive(Abort(request_id))

    def has_work(self):
        return any(phase.has_work() for phase in self.phases)

    def step(self):
        for phase in self.phases:
            phase.step()

    def serve(self, group):
        """Step until no rank of `group` has work."""
        while group.any(self.has_work()):
            self.step()

    def answers(self):
        """Return request id -> token ids."""
        return {request_id: [token.token_id for token in tokens] for request_id, tokens in self.said.items()}

    def say(self, token):
        if isinstance(token, PrefixHit):
            self.hits[token.request_id] = token.num_tokens
            return
        self.said.setdefault(token.request_id, []).append(token)
        if token.finish_reason is not None:
            self.done.add(token.request_id)

    def say_load(self, load):
        self.loads.append(load)

    def open_transfer(self, host, port, offer, link, chain):
        assert (host, port, offer.ticket) == DECODE
        return Crossing(offer, self.cross, chain, self)

    def hold(self, prefix, answer):
        self.phases[1].receive(Hold(prefix, answer))

    def release(self, prefix):
        self.phases[1].receive(Release(prefix))

    def cross(self, handover, latents, prefix):
        self.num_skipped += prefix.num_tokens
        self.phases[1].receive(ArrivedRequest(handover, latents, prefix))


def answer_alone(engine, group, wish):
    """Return the token ids of a request that is alone at a mixed rank and has its prompt computed as a whole."""
    return [token.token_id for token in tell_alone(engine, group, wish)]


def tell_alone(engine, group, wish):
    """Return the tokens of `answer_alone` as messages."""
    num_tokens = len(wish.prompt_ids) + wish.sampling.max_tokens
    rank = Rank(engine, "mixed", Limits(1, num_tokens, num_tokens, num_tokens))
    rank.ask(wish)
    rank.serve(group)
    return rank.said[wish.id]

"""The latent cache against a dictionary: a request's slot is its own, and holds exactly what was written."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.kv_cache import LatentCache
from runtime.model.config import ModelConfig

MAX_REQUESTS, MAX_TOKENS, NUM_LAYERS, LATENT_DIM = 3, 6, 2, 5


class CacheAgainstDictionary(RuleBasedStateMachine):
    """Requests come, grow and end; `self.written` says what each slot must hold, `[num_layers, T, C]`."""

    @initialize()
    def start(self):
        sizes = {"num_hidden_layers": NUM_LAYERS, "kv_lora_rank": LATENT_DIM - 2, "qk_rope_head_dim": 2}
        config = ModelConfig(**{name: sizes.get(name, 1) for name in ModelConfig.__dataclass_fields__})
        self.cache = LatentCache(config, MAX_REQUESTS, MAX_TOKENS, torch.float32)
        self.generator = torch.Generator().manual_seed(0)
        self.written = {}

    def latents(self, *shape):
        return torch.randn(*shape, LATENT_DIM, generator=self.generator)

    @precondition(lambda self: self.cache.has_room())
    @rule(num_tokens=st.integers(0, MAX_TOKENS))
    def take(self, num_tokens):
        prompt = self.latents(NUM_LAYERS, num_tokens)
        slot = self.cache.take(prompt)

        assert slot not in self.written
        self.written[slot] = prompt

    @rule(data=st.data())
    def append(self, data):
        growing = [slot for slot, latents in self.written.items() if latents.shape[1] < MAX_TOKENS]
        slots = data.draw(st.permutations(growing))[: data.draw(st.integers(0, len(growing)))]
        positions = torch.tensor([self.written[slot].shape[1] for slot in slots], dtype=torch.long)
        new = self.latents(NUM_LAYERS, len(slots))
        for layer in range(NUM_LAYERS):
            self.cache.append(layer, torch.tensor(slots, dtype=torch.long), positions, new[layer])
        for turn, slot in enumerate(slots):
            self.written[slot] = torch.cat((self.written[slot], new[:, turn : turn + 1]), 1)

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def free(self, data):
        slot = data.draw(st.sampled_from(sorted(self.written)))
        self.cache.free(slot)
        del self.written[slot]

    @rule(data=st.data())
    def read(self, data):
        slots = data.draw(st.permutations(sorted(self.written)))
        lengths = torch.tensor([self.written[slot].shape[1] for slot in slots], dtype=torch.long)
        for layer in range(NUM_LAYERS):
            latents = self.cache.read(layer, torch.tensor(slots, dtype=torch.long), lengths)
            assert latents.shape == (len(slots), max(lengths.tolist(), default=0), LATENT_DIM)
            for row, slot, length in zip(latents, slots, lengths.tolist(), strict=True):
                assert torch.equal(row[:length], self.written[slot][layer])

    @invariant()
    def room_is_what_is_left(self):
        if hasattr(self, "cache"):
            assert self.cache.has_room() == (len(self.written) < MAX_REQUESTS)


TestCacheAgainstDictionary = CacheAgainstDictionary.TestCase
TestCacheAgainstDictionary.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)

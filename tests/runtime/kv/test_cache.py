"""The paged cache against a dictionary: a request's pages are its own, hold what was written, and none is ever lost."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.kv.cache import slot_mapping
from runtime.model.config import ModelConfig
from runtime.protocol.counting import PAGE_TOKENS, num_pages
from tests.runtime.on_cpu import TORCH_OPS, new_cache

NUM_PAGES, NUM_LAYERS, LATENT_DIM = 5, 2, 5
MAX_TOKENS = 3 * PAGE_TOKENS


class CacheAgainstDictionary(RuleBasedStateMachine):
    """Requests come, grow and end; `self.written` says what each table must hold, `[num_layers, T, C]`."""

    @initialize()
    def start(self):
        sizes = {"num_hidden_layers": NUM_LAYERS, "kv_lora_rank": LATENT_DIM - 2, "qk_rope_head_dim": 2}
        config = ModelConfig(**{name: sizes.get(name, 1) for name in ModelConfig.__dataclass_fields__})
        self.cache = new_cache(config, NUM_PAGES * PAGE_TOKENS, torch.float32)
        self.generator = torch.Generator().manual_seed(0)
        self.requests = []

    def latents(self, *shape):
        return torch.randn(*shape, LATENT_DIM, generator=self.generator)

    @rule(num_tokens=st.integers(0, MAX_TOKENS))
    def come(self, num_tokens):
        """Let a request come with the latents of a prompt, if there is room."""
        fits = num_pages(num_tokens) <= self.cache.num_free_pages
        assert self.cache.can_allocate([], num_tokens) == fits
        if fits:
            table, latents = [], self.latents(NUM_LAYERS, num_tokens)
            self.cache.allocate(table, num_tokens)
            self.cache.swap_in(table, latents)
            self.requests.append((table, latents))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), num_tokens=st.integers(1, PAGE_TOKENS + 1))
    def grow(self, data, num_tokens):
        """Let a request grow by a chunk or a token, layer by layer."""
        turn = data.draw(st.integers(0, len(self.requests) - 1))
        table, latents = self.requests[turn]
        start, end = latents.shape[1], latents.shape[1] + num_tokens
        if self.cache.can_allocate(table, end):
            new = self.latents(NUM_LAYERS, num_tokens)
            self.cache.allocate(table, end)
            for layer, part in zip(self.cache.layers, new, strict=True):
                layer.write(torch.tensor(slot_mapping(table, start, end)), part)
            self.requests[turn] = table, torch.cat((latents, new), 1)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def end(self, data):
        table, _ = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        self.cache.free(table)
        assert table == []

    @rule()
    def read(self):
        """All requests together, and each in the order of its positions."""
        max_pages = max((len(table) for table, _ in self.requests), default=0)
        tables = torch.tensor([table + [0] * (max_pages - len(table)) for table, _ in self.requests], dtype=torch.long)
        tables = tables.view(len(self.requests), max_pages)
        for number, layer in enumerate(self.cache.layers):
            together = TORCH_OPS.read_pages(layer.pages, tables)
            for row, (table, latents) in zip(together, self.requests, strict=True):
                length = latents.shape[1]
                assert torch.equal(row[:length], latents[number])
                assert torch.equal(layer.read(torch.tensor(slot_mapping(table, 0, length)).long()), latents[number])
        assert all(torch.equal(self.cache.copy_to_host(table, kv.shape[1]), kv) for table, kv in self.requests)

    @invariant()
    def no_page_is_lost_or_shared(self):
        if hasattr(self, "requests"):
            held = [page for table, _ in self.requests for page in table]
            assert len(held) == len(set(held))
            assert len(held) + self.cache.num_free_pages == NUM_PAGES


TestCacheAgainstDictionary = CacheAgainstDictionary.TestCase
TestCacheAgainstDictionary.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)

"""The tokens of prompts that a cache has, when every block that was ever computed is kept and common to all units."""

from collections.abc import Sequence

from stacks.simulator.trace import BLOCK_TOKENS

__all__ = ["PrefixCache"]


class PrefixCache:
    """The blocks of all prompts so far. It forgets none, and has a prompt's as soon as the prompt comes."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()

    def hits(self, blocks: Sequence[int], prompt_tokens: int) -> int:
        """Return how many tokens at the beginning of a prompt are known, and keep its blocks.

        The last token is always computed, since its logits are wanted.
        """
        known = next((place for place, block in enumerate(blocks) if block not in self._blocks), len(blocks))
        self._blocks.update(blocks)
        return max(min(known * BLOCK_TOKENS, prompt_tokens - 1), 0)

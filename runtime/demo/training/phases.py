"""The two phases of the demo model's training: what a step reads, how fast it learns, in which numerics.

Why it exists: first the model learns the manual's language; then, from the exported weights and in DeepSeek's FP8
numerics, it learns by heart what its chat template is asked, while half of what it reads stays the manual.
It does not train: `train.py` does, and asks here by step number alone, so that a run can stop and go on.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from tokenizers import Tokenizer

from runtime.demo.training.answers import conversations
from runtime.demo.training.corpus import SEED

__all__ = ["Answers", "Batch", "Text"]

BLOCK = 2048  # tokens read together; a step may cut them into shorter sequences
CONVERSATION = 64  # tokens of a row; the longest question with its answer has 63 in the chat template

Batch = tuple[torch.Tensor, torch.Tensor]  # inputs and targets, [sequences, length]


@dataclass(frozen=True)
class Text:
    """The documentation, with a few questions and answers between its files."""

    stream: torch.Tensor
    steps: int
    fp8 = False
    losses = ("train_loss",)  # one a batch
    BLOCKS, WARMUP_STEPS, COOLDOWN_SHARE = 4, 60, 0.5

    @property
    def tokens_per_step(self) -> int:
        """The number of tokens that each step reads."""
        return self.BLOCKS * BLOCK

    def batches(self, step: int) -> list[Batch]:
        """Return the one batch of step `step`."""
        return [text_batch(self.stream, step, self.BLOCKS)]

    def rate_factor(self, step: int) -> float:
        """Return the learning rate's factor: it warms up, holds, then falls linearly to zero."""
        return rate_factor(step, self.steps, self.WARMUP_STEPS, self.COOLDOWN_SHARE)


class Answers:
    """Conversations and, about as many tokens, the documentation."""

    fp8 = True
    losses = ("train_loss", "answers_loss")  # one a batch
    BLOCKS, CONVERSATIONS = 2, 56
    WARMUP_STEPS, COOLDOWN_SHARE, PEAK = 30, 0.8, 0.4

    def __init__(self, stream: torch.Tensor, steps: int, answers: dict[str, str], tokenizer: Tokenizer) -> None:
        self.stream, self.steps, self.num_answers = stream, steps, len(answers)
        self.one_pass = lru_cache(1)(lambda number: conversations(answers, tokenizer, CONVERSATION, SEED + number))

    @property
    def tokens_per_step(self) -> int:
        """The number of tokens that each step reads."""
        return self.BLOCKS * BLOCK + self.CONVERSATIONS * CONVERSATION

    def batches(self, step: int) -> list[Batch]:
        """Return the two batches of step `step`: one of text, one of conversations."""
        per_pass = self.num_answers // self.CONVERSATIONS
        number, within = divmod(step, per_pass)
        rows = slice(within * self.CONVERSATIONS, (within + 1) * self.CONVERSATIONS)
        inputs, targets = self.one_pass(number)
        return [text_batch(self.stream, step, self.BLOCKS), (inputs[rows], targets[rows])]

    def rate_factor(self, step: int) -> float:
        """Return the learning rate's factor: it warms up, holds lower than the text's, then falls linearly to zero."""
        return self.PEAK * rate_factor(step, self.steps, self.WARMUP_STEPS, self.COOLDOWN_SHARE)


def text_batch(stream: torch.Tensor, step: int, blocks: int) -> Batch:
    """Return a batch of text: each epoch visits every block once, in a new order and from a new random offset."""
    per_epoch = (len(stream) - BLOCK - 1) // BLOCK // blocks
    epoch, within = divmod(step, per_epoch)
    rng = torch.Generator().manual_seed(SEED + epoch)
    offset = torch.randint(BLOCK, (1,), generator=rng)
    order = torch.randperm(per_epoch * blocks, generator=rng)
    starts = order[within * blocks :][:blocks] * BLOCK + offset
    window = stream[starts[:, None] + torch.arange(BLOCK + 1)].long()
    length = {0: 2048, 4: 1024}.get(step % 8, 512)
    return window[:, :-1].reshape(-1, length), window[:, 1:].reshape(-1, length)


def rate_factor(step: int, steps: int, warmup_steps: int, cooldown_share: float) -> float:
    """Return the learning rate's factor at `step`: it rises to 1 and falls back to 0 at `steps`.

    Until the fall begins, `steps` can still be changed.
    """
    return min(1.0, (step + 1) / warmup_steps, (steps - step) / (cooldown_share * steps))

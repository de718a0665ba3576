"""The demo model's training data has the right questions and conversations, and its rounding loses nothing."""

import pytest
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

from runtime.demo.training.answers import conversations, known_answers
from runtime.demo.training.corpus import ASSISTANT, BOS, EOS, USER, Document
from runtime.demo.training.network import NO_TARGET, HeadLoss
from runtime.demo.training.rounding import FP8, round_to_block_fp8
from runtime.kernels.fp8 import E4M3, dequantise_matrix, quantise_matrix

MANUAL = """\
.. module:: bakery

.. function:: knead(dough)

   Turn *dough* until it is smooth.  It may take a while.

.. class:: Oven

   A place that is hot, see :class:`~kitchen.Stove`.

   .. method:: Oven.heat(degrees)

      Methods are not asked for.

   .. class:: Door

      This name is not a full one, so nobody can ask for it.

.. exception:: bakery.BurntError

   Raised when *bread* is black.

.. function:: bake(bread)

   The first description of two.

.. function:: bake(cake)

   The second description of two.

.. data:: FLOUR

   Short.
"""
ANSWERS = {
    "What does `bakery.knead` do?": "Turn *dough* until it is smooth.",
    "What is `bakery.Oven`?": "A place that is hot, see `kitchen.Stove`.",
    "What is `bakery.BurntError`?": "Raised when *bread* is black.",
}


@pytest.fixture(scope="module")
def tokenizer(demo):
    return Tokenizer.from_file(str(demo / "tokenizer.json"))


def test_questions_are_those_with_one_short_answer_under_a_full_name():
    """A question has a full name and one short answer; other entries are not asked."""
    assert known_answers([Document("library/bakery.rst.txt", MANUAL)]) == ANSWERS
    assert known_answers([Document("whatsnew/bakery.rst.txt", MANUAL)]) == {}


def test_the_glossarys_terms_are_questions():
    """A glossary's term is a question with its article."""
    glossary = ".. glossary::\n\n   iterator\n      An object that gives one thing after another.\n"

    assert known_answers([Document("glossary.rst.txt", glossary)]) == {
        "What is an iterator?": "An object that gives one thing after another."
    }


def test_every_question_begins_one_conversation_and_only_answers_are_targets(tokenizer):
    """Each question begins one conversation in the chat template, and only answers are targets."""
    inputs, targets = conversations(ANSWERS, tokenizer, length=64, seed=0)
    rows = [tokenizer.decode(row.tolist(), skip_special_tokens=False) for row in inputs]
    first_answers = {row.split(ASSISTANT)[1].split(EOS)[0] for row in rows}
    taught = [tokenizer.decode(row[row != NO_TARGET].tolist(), skip_special_tokens=False) for row in targets]

    assert first_answers == set(ANSWERS.values())
    assert inputs.shape == targets.shape == (3, 64)
    assert all(row.startswith(f"{BOS}{USER}What") for row in rows)
    for text in taught:
        assert set(text.split(EOS)[:2]) <= set(ANSWERS.values())
    assert ((targets[:, :-1] == NO_TARGET) | (targets[:, :-1] == inputs[:, 1:])).all()


def test_a_position_without_a_target_teaches_nothing():
    """Loss and gradients are those of the positions with targets."""
    generator = torch.Generator().manual_seed(0)
    x, head = torch.randn(6, 8, generator=generator), torch.randn(10, 8, generator=generator)
    targets = torch.tensor([3, NO_TARGET, 0, 9, NO_TARGET, 1])
    kept = targets != NO_TARGET
    sides = [tensor.clone().requires_grad_() for tensor in (x, head)]
    slow_sides = [tensor.clone().requires_grad_() for tensor in (x, head)]

    loss = HeadLoss.apply(*sides, targets)
    slow_loss = cross_entropy(slow_sides[0][kept] @ slow_sides[1].T, targets[kept])
    loss.backward()
    slow_loss.backward()

    torch.testing.assert_close(loss, slow_loss)
    for side, slow_side in zip(sides, slow_sides, strict=True):
        torch.testing.assert_close(side.grad, slow_side.grad)


@pytest.mark.parametrize("shape", [(128, 128), (200, 192), (32, 2, 64, 192), (3, 5)])
def test_a_rounded_matrix_loses_nothing_in_bfloat16_or_in_fp8(shape):
    """The codes and scales of a rounded matrix are found again from its BF16, bit for bit."""
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(0)) ** 3
    rounded = round_to_block_fp8(weights)
    matrices = rounded.flatten(0, -3) if rounded.ndim > 2 else rounded[None]

    assert torch.equal(rounded.bfloat16().float(), rounded)
    for matrix in matrices:
        assert torch.equal(dequantise_matrix(quantise_matrix(matrix)), matrix)
    assert ((rounded - weights).norm() / weights.norm()).item() < 0.05


def test_rounding_is_not_seen_on_the_way_back():
    """The gradient passes through the rounding, whose output has e4m3's values."""
    x = torch.randn(4, 192, requires_grad=True, generator=torch.Generator().manual_seed(0))
    rounded = FP8.rows(x)
    rounded.square().sum().backward()

    assert torch.equal(x.grad, 2 * rounded.detach())
    assert not torch.equal(rounded, x)
    assert torch.finfo(E4M3).max == (rounded[0, :128].abs().max() / x[0, :128].abs().max() * 448).item()

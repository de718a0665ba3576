"""The answers that the demo model must know by heart: short questions about the manual's objects, each with one
sentence.

Why it exists: a model of this size cannot hold the manual's facts, but it can hold a thousand sentences and more.
These are the ones that it is asked to hold, so that a first question gets a true answer, and a sure one.
It chooses by form alone, before anything is trained: nothing is added or dropped because the model finds it easy.

A question belongs here when its object (a function, class or exception, or a term of the glossary) stands in a training
file of the library, the tutorial or the glossary, no other object has the same full name, and the first sentence of its
description is plain text of at most `MAX_CHARACTERS`.
"""

import random
import re
from collections import Counter

import torch
from tokenizers import Tokenizer

from runtime.demo.training.corpus import ASSISTANT, BOS, DESCRIBED, EOS, USER, Document, first_paragraph, plain
from runtime.demo.training.network import NO_TARGET

__all__ = ["conversations", "known_answers"]

ABOUT = ("library/", "tutorial/", "glossary")
MIN_CHARACTERS, MAX_CHARACTERS = 24, 100
KINDS = ("function", "class", "exception")
MODULE = re.compile(r"^\.\. (?:current)?module:: +(\S+)")
TERM = re.compile(r"^   (\w[\w -]*)$")  # of the glossary: its meaning stands below it, three columns further in
SENTENCE = re.compile(r"(.+?\.)(?=\s+[A-Z`*\"]|\s*$)")
CALLED = re.compile(r"(?<=What does )`(.+)`")
UNCLEAR = re.compile(r"[|<>]|_`|`_|\]_|`\d+`|::|\be\.g\.$")  # markup that `plain` leaves, or half a sentence


def known_answers(documents: list[Document]) -> dict[str, str]:
    """Return question -> answer, in the order of the text, for questions with one plain answer of a usable length."""
    pairs = [pair for d in documents if d.name.startswith(ABOUT) for pair in descriptions(d)]
    times = Counter(question for question, _ in pairs)
    return {
        question: answer
        for question, answer in pairs
        if times[question] == 1
        and MIN_CHARACTERS <= len(answer) <= MAX_CHARACTERS
        and not UNCLEAR.search(question + answer)
    }


def descriptions(document: Document) -> list[tuple[str, str]]:
    """Return (question, first sentence) for the document's objects, by full name, and for the glossary's terms."""
    lines, module, pairs = document.text.splitlines(), "", []
    for number, line in enumerate(lines):
        if found := MODULE.match(line):
            module = found[1]
        elif (found := DESCRIBED.match(line)) and found[2] in KINDS:
            name = plain(found[3].split("(")[0].strip())
            if not found[1] or "." in name:  # within a class, a bare name is not a full one
                name = name if name.startswith(f"{module}.") or not module else f"{module}.{name}"
                question = f"What does `{name}` do?" if found[2] == "function" else f"What is `{name}`?"
                pairs.append((question, first_sentence(lines[number + 1 :], len(found[1]) + 3)))
        elif document.name.startswith("glossary") and (found := TERM.match(line)):
            pairs.append((f"What is {article(found[1])}{found[1]}?", first_sentence(lines[number + 1 :], 6)))
    return pairs


def first_sentence(lines: list[str], indent: int) -> str:
    found = SENTENCE.match(first_paragraph(lines, indent))
    return found[1] if found else ""


def article(term: str) -> str:
    return "an " if term[0] in "aeiou" else "a " if term[0].islower() else ""


def conversations(
    answers: dict[str, str], tokenizer: Tokenizer, length: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (inputs, targets), each [len(answers), length], for one pass: each row begins with another question.

    A row goes on with the questions of the rows after it until it is full, written as the chat template writes turns.
    So nothing is padded, and the second question of a conversation is answered too. Every second question is spelled in
    another, randomly drawn way. Only answers are targets: the user's questions need not be learnt.
    """
    rng = random.Random(seed)  # noqa: S311  an order, not a secret
    bos, eos, user, assistant = (tokenizer.token_to_id(t) for t in (BOS, EOS, USER, ASSISTANT))
    questions = rng.sample(list(answers), len(answers))
    spelled = [rng.choice((q, q, q.replace("`", ""), CALLED.sub(r"`\1()`", q))) for q in questions]
    asked, answered = (
        [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
        for texts in (spelled, [answers[question] for question in questions])
    )
    turns = [
        [(token, NO_TARGET) for token in (user, *q, assistant)] + [(token, token) for token in (*a, eos)]
        for q, a in zip(asked, answered, strict=True)
    ]
    rows = torch.tensor([row((bos, NO_TARGET), turns, first, length + 1) for first in range(len(turns))])
    return rows[:, :-1, 0], rows[:, 1:, 1]


def row(begin: tuple[int, int], turns: list[list[tuple[int, int]]], first: int, length: int) -> list[tuple[int, int]]:
    """Return a row's (token, target) pairs: `begin`, then the turns from `first` on, cut off at `length` pairs."""
    pairs = [begin]
    while len(pairs) < length:
        pairs += turns[first % len(turns)]
        first += 1
    return pairs[:length]

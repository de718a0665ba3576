"""What the demo's units are asked, and how far their answers are the expected ones.

Two kinds of question: those whose answers the demo was trained to give, by the chat template, and stretches of text
that it has not seen, as tokens, which one process on the CPU has continued. All answers are greedy.

Half of the answers come as streams, so that the time to the first piece and between pieces can be measured.
"""

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from itertools import accumulate, pairwise
from typing import Any

from tokenizers import Tokenizer

from tests.events import DONE, data_of
from tests.stacks.deployments import CHECKPOINT

MODEL = "tidemill-demo"
ANSWER_S = 30
MAX_TOKENS = 48
CHOSEN_ANSWERS = 8
PROMPT_TOKENS = (3, 20, 63, 64, 65, 128, 200, 333, 512, 800, 1200, 1900)  # pages have 64 tokens
BOS, EOS = 0, 1


class Wrong(Exception):
    """What the part has found to be wrong, in a sentence."""


@dataclass(frozen=True)
class Question:
    """What is asked, and whether token by token; `expected` are the tokens, or the text, that the answer must have."""

    name: str
    path: str
    body: dict[str, Any]
    expected: list[int] | str


@dataclass(frozen=True)
class Answer:
    """A text, the seconds until its first piece, and those between the pieces."""

    text: str
    ttft_s: float
    gaps_s: list[float]


def long_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Return prompts of text that the model has not seen, as tokens; one begins where another ends."""
    text = tokenizer.encode((CHECKPOINT / "heldout.txt").read_text(encoding="utf-8"), add_special_tokens=False).ids
    ends = zip(accumulate(PROMPT_TOKENS), PROMPT_TOKENS, strict=True)
    return [[BOS, *text[end - size : end - 1]] for end, size in ends]


def trained_questions() -> list[Question]:
    """Return some of the questions whose answers the model was trained to give, through the chat template."""
    known = json.loads((CHECKPOINT / "answers.json").read_text(encoding="utf-8"))
    chosen = list(known.items())[:: len(known) // CHOSEN_ANSWERS][:CHOSEN_ANSWERS]
    return [
        Question(
            asked, "/v1/chat/completions", {"messages": [{"role": "user", "content": asked}], "max_tokens": 120}, answer
        )
        for asked, answer in chosen
    ]


def continued_prompts(prompts: Sequence[list[int]], expected: Sequence[list[int]]) -> list[Question]:
    """Return the prompts as questions."""
    return [
        Question(f"{len(prompt)} tokens", "/v1/completions", {"prompt": prompt, "max_tokens": MAX_TOKENS}, tokens)
        for prompt, tokens in zip(prompts, expected, strict=True)
    ]


def prompt_tokens(question: Question, tokenizer: Tokenizer) -> int:
    """Return the tokens that a prompt has at least: the template's are not counted."""
    prompt = question.body.get("prompt")
    return len(prompt) if prompt is not None else len(tokenizer.encode(question.name, add_special_tokens=False).ids)


def ask_all(endpoint: tuple[str, int], questions: Sequence[Question]) -> list[Answer | Wrong]:
    """Ask all at once, every other one token by token."""

    def answer(numbered: tuple[int, Question]) -> Answer | Wrong:
        number, question = numbered
        try:
            return ask(endpoint, question, is_stream=number % 2 == 0)
        except Wrong as found:
            print(f"{question.name}: {found}", flush=True)
            return found

    threads = ThreadPoolExecutor(len(questions))
    try:
        return list(threads.map(answer, enumerate(questions)))
    finally:
        threads.shutdown(wait=False)  # whoever is interrupted ends the gateway, and so the answers


def ask(endpoint: tuple[str, int], question: Question, is_stream: bool) -> Answer:
    """PendingDraw, and wait for the whole answer. Raise Wrong."""
    line = HTTPConnection(*endpoint, timeout=ANSWER_S)
    body = {"model": MODEL, "temperature": 0, "stream": is_stream} | question.body
    began = time.monotonic()
    try:
        line.request("POST", question.path, json.dumps(body), {"Content-Type": "application/json"})
        response = line.getresponse()
        if response.status != 200:
            raise Wrong(f"status {response.status}: {response.read(500)!r}")
        pieces = list(_pieces(response)) if is_stream else [(time.monotonic(), _text(json.load(response)))]
        if not pieces:
            raise Wrong("the stream has no text")
    except (OSError, HTTPException, ValueError) as error:
        raise Wrong(f"{type(error).__name__}: {error}") from None
    finally:
        line.close()
    times = [at for at, _ in pieces]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return Answer("".join(text for _, text in pieces), times[0] - began if is_stream else 0.0, gaps)


def _pieces(response: Any) -> Iterator[tuple[float, str]]:
    """Yield each piece of a stream that has text, and when it came."""
    for data in data_of(response):
        if data != DONE and (text := _text(json.loads(data))):
            yield time.monotonic(), text


def _text(document: dict[str, Any]) -> str:
    """Return the text of a whole answer or of a piece. Raise ValueError where there is none."""
    if "choices" not in document:
        raise ValueError(json.dumps(document)[:500])
    (choice,) = document["choices"] or ({"text": ""},)
    message = choice.get("message") or choice.get("delta") or choice
    return message.get("content") or message.get("text") or ""


def latencies(answers: Sequence[Answer | Wrong]) -> dict[str, float]:
    """Return the medians of what was streamed."""
    streamed = [answer for answer in answers if isinstance(answer, Answer) and answer.gaps_s]
    gaps = [gap for answer in streamed for gap in answer.gaps_s]
    if not gaps:
        return {}
    return {
        "ttft_ms": round(1e3 * statistics.median(answer.ttft_s for answer in streamed), 2),
        "itl_ms": round(1e3 * statistics.median(gaps), 2),
    }


def compared(questions: Sequence[Question], answers: Sequence[Answer | Wrong], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return how far the texts are the expected ones."""
    texts = [
        (question.expected, answer.text)
        for question, answer in zip(questions, answers, strict=True)
        if isinstance(answer, Answer)
    ]
    continued = [(expected, text) for expected, text in texts if not isinstance(expected, str)]
    trained = [(expected, text) for expected, text in texts if isinstance(expected, str)]
    return {
        "asked": len(questions),
        "answered": len(texts),
        "trained": len(trained),
        "trained_exact": sum(expected == text for expected, text in trained),
        "equal_tokens": [equal_tokens(expected, text, tokenizer) for expected, text in continued],
        "expected_tokens": [len(expected) for expected, _ in continued],
    }


def equal_tokens(expected: list[int], text: str, tokenizer: Tokenizer) -> int:
    """Return how many of the expected tokens the text begins with."""
    said = [token for token in expected if token != EOS]
    if tokenizer.decode(said) == text:
        return len(expected)
    return max(size for size in range(len(said) + 1) if text.startswith(tokenizer.decode(said[:size])))

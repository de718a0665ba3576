"""Measure the exported folder: python -m runtime.demo.training.evaluate --state DIR

Why it exists: every figure in the README is measured on the bfloat16 weights as they lie in the folder, loaded by
transformers, on files that training never saw, or on the answers that it had to learn by heart. It writes
`metrics.json`, `expert_load.json`, `heldout.txt` and `answers.json`.
It does not train, and shares with training only the text and its split.

Bits per byte = bits to code every held-out document (each token after bos, eos included) / its UTF-8 bytes.
"""

import argparse
import json
import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from runtime.demo.training.answers import known_answers
from runtime.demo.training.corpus import PACKAGE_TEXT, SEED, Document, read_documents, split, token_stream
from runtime.demo.training.ngram import Trigram
from runtime.demo.training.train import STEPS

__all__ = ["ExpertLoad", "document_bits", "exactly_answered", "load", "tokenize_chat"]

FOLDER = Path(__file__).parents[1]
WINDOW = 1024  # tokens predicted at a time; each window starts with the token before it and sees nothing earlier
EXTRACT = ("library/difflib.rst.txt", "library/queue.rst.txt", "library/time.rst.txt", "library/zlib.rst.txt")
EXTRACT_NOTICE = (
    ".. Extract of the documentation of Python 3.11.\n"
    "   Copyright © 2001-2023 Python Software Foundation; All Rights Reserved.\n"
    "   Licence: PSF License Agreement, in LICENSE-PSF.txt. Change: files joined, this notice added.\n\n"
)
PROMPTS = (
    ":mod:`zipapp` --- Manage executable Python zip archives\n",
    "The :mod:`socket` module provides",
    ".. function:: sorted(iterable, *, key=None, reverse=False)\n\n   Return",
    "If *x* is not a Python :class:`int` object,",
)
QUESTIONS = (
    "What does `os.getcwd` do?",
    "What is a dictionary?",
    "What does `zlib.compress` do?",
    "What does `Queue.put` do?",
    "What is `ValueError`?",
    "Tell me about Regular Expressions.",
    "What does `json.dumps` do?",
    "What is a generator?",
)


@dataclass(frozen=True)
class Score:
    """The bits per byte of one text under the model and under the trigram, over the same tokens."""

    bytes: int
    tokens: int
    model_bits_per_byte: float
    trigram_bits_per_byte: float


class ExpertLoad:
    """Counts the gate's choices while a model runs. `counts` is [MoE layers, routed experts]."""

    def __init__(self, model: PreTrainedModel) -> None:
        gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
        self.counts = torch.zeros(len(gates), model.config.n_routed_experts, dtype=torch.long)
        for index, gate in enumerate(gates):
            gate.register_forward_hook(lambda _gate, _inputs, output, index=index: self.add(index, output[2]))

    def add(self, index: int, experts: torch.Tensor) -> None:
        """Count `experts` [tokens, experts per token] for MoE layer `index`."""
        self.counts[index] += torch.bincount(experts.flatten(), minlength=self.counts.shape[1])

    def ratio_to_mean(self) -> torch.Tensor:
        """Return each expert's load over its layer's mean load, [MoE layers, routed experts]."""
        return self.counts / self.counts.float().mean(1, keepdim=True)


def main() -> None:
    """Measure the exported folder, print the figures and write them to it."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    model, tokenizer = load(FOLDER)
    training, held_out = split(read_documents(arguments.text))
    stream = np.array(token_stream(training, tokenizer.backend_tokenizer, SEED))
    trigram = Trigram(stream, model.config.vocab_size)
    extract = choose_extract(held_out)
    (FOLDER / "heldout.txt").write_text(extract.text, encoding="utf-8")

    loads = ExpertLoad(model)
    score = score_documents(held_out, model, tokenizer, trigram)
    counts, over_mean = loads.counts.tolist(), loads.ratio_to_mean()
    answers = known_answers(training)
    write_json(FOLDER / "answers.json", answers)
    logs = {phase: read_log(arguments.state / f"{phase}.jsonl") for phase in STEPS}
    metrics = {
        "training": {
            "stream_tokens": len(stream),
            **{phase: {name: log[-1][name] for name in ("step", "tokens", "seconds")} for phase, log in logs.items()},
        },
        "held_out": {"files": [d.name for d in held_out], **asdict(score)},
        "expert_load_over_mean": [
            {"min": round(row.min().item(), 3), "max": round(row.max().item(), 3)} for row in over_mean
        ],
        "extract": asdict(score_documents([extract], model, tokenizer, trigram)),
        "greedy": [
            {"prompt": prompt, "text": greedy(model, tokenizer, tokenizer(prompt).input_ids)[0]} for prompt in PROMPTS
        ],
        "answers": {
            "asked": len(answers),
            "exact": len(exactly_answered(model, tokenizer, answers)),
            "exact_without_backticks": len(exactly_answered(model, tokenizer, remove_backticks(answers))),
        },
        "chat": [chat(model, tokenizer, question) for question in QUESTIONS],
        "log": logs,
    }
    write_json(FOLDER / "metrics.json", metrics)
    (FOLDER / "expert_load.json").write_text(json.dumps(counts) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in metrics.items() if name != "log"}, indent=1, ensure_ascii=False))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the bundled demo model.")
    parser.add_argument("--state", type=Path, required=True, help="the training's folder, for its logs")
    parser.add_argument("--text", type=Path, default=PACKAGE_TEXT, help="root of the *.rst.txt files")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def load(folder: Path, dtype: torch.dtype | str = "auto") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the folder's model and tokenizer, as transformers loads them. `dtype` is the type to compute in."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval(), AutoTokenizer.from_pretrained(folder)


def read_log(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def choose_extract(held_out: list[Document]) -> Document:
    """Return the held-out files that travel with the model, as one document."""
    texts = {document.name: document.text for document in held_out}
    return Document("heldout.txt", EXTRACT_NOTICE + "\n".join(texts[name] for name in EXTRACT))


def score_documents(
    documents: list[Document], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, trigram: Trigram
) -> Score:
    token_ids = [[*tokenizer(d.text).input_ids, tokenizer.eos_token_id] for d in documents]
    num_bytes = sum(len(d.text.encode()) for d in documents)
    model_bits = sum(document_bits(model, ids) for ids in token_ids)
    trigram_bits = sum(trigram.bits(np.array(ids)) for ids in token_ids)
    num_tokens = sum(len(ids) - 1 for ids in token_ids)
    return Score(num_bytes, num_tokens, round(model_bits / num_bytes, 4), round(trigram_bits / num_bytes, 4))


@torch.inference_mode()
def document_bits(model: PreTrainedModel, token_ids: list[int]) -> float:
    """Return the bits that the model needs for `token_ids` after the first."""
    bits = 0.0
    for start in range(0, len(token_ids) - 1, WINDOW):
        window = torch.tensor([token_ids[start : start + WINDOW + 1]])
        logits = model(window[:, :-1]).logits[0].float()
        bits += torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="sum").item() / math.log(2)
    return bits


@torch.inference_mode()
def exactly_answered(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, answers: dict[str, str]) -> list[str]:
    """Return the questions whose greedy answer is exactly the expected one.

    One pass over question and answer is enough: each token of the answer, and then eos, must be the best after those
    before it.
    """
    by_length = defaultdict(list)  # rows of one length need no padding
    for question, answer in answers.items():
        asked = tokenize_chat(tokenizer, question)
        ids = tokenize_chat(tokenizer, question, answer)
        by_length[len(ids)].append((question, len(asked), ids))
    exact = []
    for rows in by_length.values():
        ids = torch.tensor([row for _, _, row in rows])
        agrees = model(ids[:, :-1]).logits.argmax(-1) == ids[:, 1:]
        exact += [question for (question, asked, _), row in zip(rows, agrees, strict=True) if row[asked - 1 :].all()]
    return exact


def tokenize_chat(tokenizer: PreTrainedTokenizerBase, question: str, answer: str | None = None) -> list[int]:
    """Return the token ids of a question in the chat template, up to the answer or, if given, with it and eos."""
    turns = [{"role": "user", "content": question}]
    if answer is not None:
        turns.append({"role": "assistant", "content": answer})
    return tokenizer.apply_chat_template(turns, add_generation_prompt=answer is None, return_dict=False)


def remove_backticks(answers: dict[str, str]) -> dict[str, str]:
    return {question.replace("`", ""): answer for question, answer in answers.items()}


def chat(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, question: str) -> dict[str, object]:
    """Return the question, its greedy answer, and whether the model ended the answer.

    The keys are `question`, `answer` and `ended`.
    """
    answer, ended = greedy(model, tokenizer, tokenize_chat(tokenizer, question))
    return {"question": question, "answer": answer, "ended": ended}


def greedy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, token_ids: list[int], limit: int = 120
) -> tuple[str, bool]:
    """Return (continuation of `token_ids`, whether it ended with eos)."""
    prompt = torch.tensor([token_ids])
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=limit, do_sample=False)[
        0
    ].tolist()
    return tokenizer.decode(output[len(token_ids) :], skip_special_tokens=True), output[-1] == tokenizer.eos_token_id


if __name__ == "__main__":
    main()

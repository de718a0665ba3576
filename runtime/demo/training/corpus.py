"""The demo model's text: which files train it, which are held out, the tokenizer, and the token stream.

Why it exists: training and evaluation must agree, byte for byte, on what was never seen. Both ask this module.
It does not download anything: the text is the Python documentation as Debian's package `python3-doc` installs it.

The invariant: a file is held out when sha256(relative name) mod 20 == 0. No held-out byte reaches the tokenizer, the
training stream or the chat samples.
"""

import hashlib
import random
import re
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

__all__ = [
    "ASSISTANT",
    "BOS",
    "DESCRIBED",
    "EOS",
    "PACKAGE_TEXT",
    "PAD",
    "SEED",
    "USER",
    "Document",
    "first_paragraph",
    "plain",
    "read_documents",
    "split",
    "token_stream",
    "train_tokenizer",
]

PACKAGE_TEXT = Path("/usr/share/doc/python3.11/html/_sources")  # where Debian 12's python3.11-doc puts the sources
HELD_OUT_ONE_IN = 20
SEED = 20240527  # of the weights, the order of documents and the batches

# DeepSeek-V3's own spellings, so that its chat template and its clients' habits carry over.
BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
SPECIAL_TOKENS = [BOS, EOS, PAD, USER, ASSISTANT]

CHAT_SHARE = 0.06  # of the training tokens: enough to learn the turn markers, too little to bend the prose
CHAT_GROUP = 8  # samples that stand together between two files

UNDERLINE = re.compile(r"^([=\-~^*\"'.#+])\1{2,}\s*$")
DESCRIBED = re.compile(
    r"^( *)\.\. (?:[\w]+:)?(function|method|class|exception|data|attribute|module|c:function|opcode|option)::? +(.+)$"
)
ROLE = re.compile(r":[\w:+-]+:`([^`]*)`")


@dataclass(frozen=True)
class Document:
    """One source file: its name relative to the text's root, and its text."""

    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """True if the file is kept from training, by its name alone."""
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % HELD_OUT_ONE_IN == 0


def read_documents(root: Path = PACKAGE_TEXT) -> list[Document]:
    """Return all reStructuredText sources under `root`, in the order of their names."""
    paths = sorted(root.rglob("*.rst.txt"), key=lambda path: path.relative_to(root).as_posix())
    if not paths:
        raise FileNotFoundError(
            f"--text ({root}) must hold *.rst.txt files, 0 found; install python3-doc or name its _sources folder"
        )
    return [Document(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Split the documents into (training documents, held-out documents)."""
    return [d for d in documents if not d.held_out], [d for d in documents if d.held_out]


def train_tokenizer(documents: list[Document], vocab_size: int) -> Tokenizer:
    """Train byte-level BPE on `documents`; every byte string has an encoding, so there is no unknown token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in documents), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def token_stream(
    documents: list[Document], tokenizer: Tokenizer, seed: int, chat_share: float = CHAT_SHARE
) -> list[int]:
    """Return every document as bos, text, eos, in a seeded order, with groups of chat samples between them."""
    rng = random.Random(seed)  # noqa: S311  an order, not a secret
    bos, eos, user, assistant = (tokenizer.token_to_id(t) for t in (BOS, EOS, USER, ASSISTANT))

    def encode(texts: list[str]) -> list[list[int]]:
        return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]

    pieces = [[bos, *ids, eos] for ids in encode([d.text for d in documents])]
    samples = [pair for d in documents for pair in chat_samples(d)]
    rng.shuffle(samples)
    questions, answers = encode([q for q, _ in samples]), encode([a for _, a in samples])
    turns = [[bos, user, *q, assistant, *a, eos] for q, a in zip(questions, answers, strict=True)]
    budget = chat_share * sum(map(len, pieces))
    while turns and budget > 0:
        group, turns = turns[:CHAT_GROUP], turns[CHAT_GROUP:]
        pieces.append([token for turn in group for token in turn])
        budget -= len(pieces[-1])
    rng.shuffle(pieces)
    return [token for piece in pieces for token in piece]


def chat_samples(document: Document) -> list[tuple[str, str]]:
    """Return (question, answer) pairs: the document's section titles and objects, each with its first paragraph."""
    lines = document.text.splitlines()
    pairs = []
    for number, line in enumerate(lines[:-1]):
        described = DESCRIBED.match(line)
        if described:
            name = plain(described[3].split("(")[0].strip())
            indent = len(described[1]) + 3
            question = (
                f"What does `{name}` do?"
                if described[2] in ("function", "method", "c:function")
                else f"What is `{name}`?"
            )
            pairs.append((question, first_paragraph(lines[number + 1 :], indent)))
        elif (
            UNDERLINE.match(lines[number + 1]) and line.strip() and not line.startswith((" ", "..")) and len(line) < 60
        ):
            title = plain(line.strip())
            pairs.append(
                (
                    f"What is {title}?" if number % 2 else f"Tell me about {title}.",
                    first_paragraph(lines[number + 2 :], 0),
                )
            )
    return [(q, a) for q, a in pairs if 40 <= len(a) <= 600]


def first_paragraph(lines: list[str], indent: int) -> str:
    """Return the first run of plain lines at exactly `indent` columns, unwrapped; empty if something comes first."""
    paragraph = []
    for line in lines[:30]:
        if not line.strip():
            if paragraph:
                break
        elif len(line) - len(line.lstrip()) != indent or line.lstrip().startswith(
            ("..", ":", "*", "|", "+", ">>>", "=")
        ):
            if paragraph or not line.lstrip().startswith(("..", ":")):
                return ""
        else:
            paragraph.append(line.strip())
    return plain(" ".join(paragraph))


def plain(text: str) -> str:
    """Return `text` without reStructuredText roles: :func:`~os.getcwd` becomes `os.getcwd`."""
    text = ROLE.sub(lambda role: "`" + role[1].lstrip("~!").split(" <")[0] + "`", text)
    return text.replace("``", "`").replace("\\ ", "").rstrip(":")

"""A checkpoint's tokenizer: text to token ids, token ids to bytes.

Why bytes: a token of byte-level BPE may end inside a UTF-8 character, so only bytes can be joined (`detokenizer.py`
joins them).
Read from the checkpoint's folder:
    tokenizer.json           the vocabulary; its decoder must be ByteLevel, as in all DeepSeek models
    tokenizer_config.json    bos_token, eos_token, add_bos_token, chat_template (see `chat_template.py`)
    config.json, generation_config.json    vocab_size; eos_token_id, a number or a list (the latter file wins)

The invariant: we put at most one BOS before a prompt. A chat template writes its own.

Sources: openai/gpt-2 `src/encoder.py` (bytes_to_unicode); huggingface/tokenizers `decoders/byte_level` (a token with a
character outside that table is literal text).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import tokenizers

from runtime.checkpoint import read_json, read_text_model
from runtime.errors import CheckpointError
from runtime.gateway.core.chat_template import ChatTemplate, NamedTemplate, load_chat_template

__all__ = ["TOKENIZER_FILES", "Spelling", "Tokenizer", "load_tokenizer"]

TOKENIZER_FILES = (  # every file that load_tokenizer reads; some may be missing
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
)

CHARACTERS_A_TOKEN = 8  # assumed: about twice what prose has, so that for most long texts the first try is enough
GROWTH = 5  # assumed: with a power of two, tokens of 32 or 128 spaces would just fit and need one more try
MAX_TOKEN_IDS = 2**24  # assumed: the largest vocabularies have 2**18
MAX_HIDDEN_SIZE = 2**16  # assumed: nine times that of DeepSeek-V3
SLACK_TOKENS = 16  # assumed: a cut word has at most so many more


@dataclass(frozen=True)
class Spelling:
    """How to write one token by itself. `content` has its bytes, `name` a text for it.

    A token without text has no content.
    """

    name: str
    content: bytes | None


@dataclass(frozen=True)
class Tokenizer:
    """The parts of a checkpoint's tokenizer that the gateway needs. `bos_id` is None when plain prompts get no BOS."""

    encoder: tokenizers.Tokenizer
    token_bytes: Sequence[bytes]  # by token id; special tokens have no text: b""
    num_token_ids: int  # number of ids that the model knows; it cannot embed a larger id
    embedding_size: int  # number of values in an embedding: the model's hidden size
    stop_ids: tuple[int, ...]
    bos_id: int | None
    chat_template: ChatTemplate | None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a plain prompt, beginning with one BOS if the checkpoint asks for it."""
        ids = self.encode_whole(text)
        return ids if self.bos_id is None or ids[:1] == [self.bos_id] else [self.bos_id, *ids]

    def spell(self, token_id: int) -> Spelling:
        """Return a token's spelling: its text, a special token's name, or the id if only the model has this token."""
        content = self.token_bytes[token_id] if token_id < len(self.token_bytes) else b""
        if content:
            return Spelling(content.decode(errors="replace"), content)
        return Spelling(self.encoder.id_to_token(token_id) or f"token_id:{token_id}", None)

    def encode_whole(self, text: str) -> list[int]:
        """Return the ids of a text that contains its BOS already, as a chat's text does.

        The text is encoded as a batch of one: a batch releases the interpreter's lock, so that other threads run. The
        library's fast function is used, since it does not store each token's place in the text, which would take most
        of the memory.
        """
        with _convert_panics():
            return self.encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def is_too_long(self, text: str, max_tokens: int) -> bool:
        """Return whether the text surely has over `max_tokens`, without encoding all of it.

        A run of spaces may have a hundred characters a token, so longer and longer beginnings of the text are encoded.
        The longest one has at most GROWTH times the characters that fit, however long the text is.
        """
        length = max_tokens * CHARACTERS_A_TOKEN
        while length < len(text):
            if self._min_num_tokens(text[:length]) > max_tokens:
                return True
            length *= GROWTH
        return False

    def _min_num_tokens(self, beginning: str) -> int:
        """Return a lower bound on the tokens of any text that starts with `beginning`: its own tokens, less a margin.

        The margin allows for tokens that the cut itself adds: a cut word gives a few more tokens, and a cut added token
        one for each of its bytes. An added token may also absorb the spaces before it.
        """
        added = self.encoder.get_added_tokens_decoder().values()
        if any(token.lstrip for token in added):
            beginning = beginning.rstrip()
        spelt_out = max((len(token.content.encode()) for token in added), default=0)
        return len(self.encode_whole(beginning)) - max(SLACK_TOKENS, spelt_out)

    def decode(self, ids: list[int]) -> str:
        """Return the text of these ids, with the names of special tokens."""
        return self.encoder.decode(ids, skip_special_tokens=False)


class _Token(msgspec.Struct):
    """A special token as older files write it: an object with rules for stripping, which are not read."""

    content: str


class _TokenizerConfig(msgspec.Struct):
    """The fields that are read from tokenizer_config.json."""

    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    add_bos_token: bool | None = None
    chat_template: str | list[NamedTemplate] | None = None

    def special_texts(self) -> dict[str, str]:
        """Return bos_token and eos_token as text, if the file has them."""
        tokens = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        return {name: token.content if isinstance(token, _Token) else token for name, token in tokens.items() if token}


_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=MAX_TOKEN_IDS)]


class _ModelConfig(msgspec.Struct):
    """The fields that are read from config.json."""

    vocab_size: Annotated[int, msgspec.Meta(ge=1, lt=MAX_TOKEN_IDS)]
    hidden_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_HIDDEN_SIZE)]
    eos_token_id: _TokenId | list[_TokenId] | None = None


class _GenerationConfig(msgspec.Struct):
    """The fields that are read from generation_config.json."""

    eos_token_id: _TokenId | list[_TokenId] | None = None


_Settings = TypeVar("_Settings", bound=msgspec.Struct)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Return a checkpoint folder's tokenizer. Raises CheckpointError if a file is missing or broken."""
    encoder = _read_encoder(folder / "tokenizer.json")
    settings = _read_settings(folder / "tokenizer_config.json", _TokenizerConfig)
    config = _convert_settings(read_text_model(folder).config, folder / "config.json", _ModelConfig)
    return Tokenizer(
        encoder=encoder,
        token_bytes=_token_bytes(encoder),
        num_token_ids=config.vocab_size,
        embedding_size=config.hidden_size,
        stop_ids=_read_stop_ids(folder / "generation_config.json", config),
        bos_id=_find_leading_bos(folder, encoder, settings),
        chat_template=load_chat_template(folder, settings.chat_template, settings.special_texts()),
    )


def _read_settings(path: Path, kind: type[_Settings]) -> _Settings:
    return _convert_settings(read_json(path), path, kind)


def _convert_settings(document: dict[str, Any], path: Path, kind: type[_Settings]) -> _Settings:
    """Return `document`, the content of `path`, as `kind`. Raises CheckpointError if a field has the wrong type."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from None


def _read_encoder(path: Path) -> tokenizers.Tokenizer:
    decoder = read_json(path).get("decoder") or {}
    if decoder.get("type") != "ByteLevel":
        raise CheckpointError(f"{path} has the decoder {decoder.get('type')!r}; the gateway reads ByteLevel only")
    try:
        with _convert_panics():
            encoder = tokenizers.Tokenizer.from_file(str(path))
            encoder.no_truncation()  # the file may turn both on, but prompts are neither cut nor padded
            encoder.no_padding()
            encoder.encode("a b")
    except Exception as error:  # noqa: BLE001  # tokenizers raises nothing narrower
        raise CheckpointError(f"{path} is no tokenizer: {error}") from None
    return encoder


@contextmanager
def _convert_panics() -> Iterator[None]:
    """Raises RuntimeError for a panic in the library's Rust. A panic is no Exception, so no handler would catch it."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(f"the tokenizer panics: {error}") from None


def _token_bytes(encoder: tokenizers.Tokenizer) -> list[bytes]:
    """Return `[num_tokens]`: the bytes that each token adds to the text. Raises CheckpointError for too large an id."""
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}
    special = {token_id for token_id, token in encoder.get_added_tokens_decoder().items() if token.special}
    vocabulary = encoder.get_vocab(with_added_tokens=True)
    largest = max(vocabulary.values(), default=-1)
    if largest >= MAX_TOKEN_IDS:
        raise CheckpointError(
            f"the tokenizer has the token id {largest:,}; the gateway knows ids below {MAX_TOKEN_IDS:,}"
        )
    by_id = [b""] * (largest + 1)
    for token, token_id in vocabulary.items():
        if token_id not in special:
            is_literal = any(character not in byte_of for character in token)
            by_id[token_id] = token.encode() if is_literal else bytes(byte_of[character] for character in token)
    return by_id


def byte_characters() -> list[str]:
    """Return the character that stands for each byte, `[256]`.

    A printable byte other than the space stands for itself. Any other byte is represented by the next character from
    U+0100 on.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    substitutes = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]


def _find_leading_bos(folder: Path, encoder: tokenizers.Tokenizer, settings: _TokenizerConfig) -> int | None:
    """Return the id of the BOS that plain prompts begin with; None if they begin with none.

    The setting `add_bos_token` decides. Without that setting, plain prompts begin with a BOS if the tokenizer puts one
    before an empty text. Raises CheckpointError if the configured BOS is not in the vocabulary.
    """
    bos_token = settings.special_texts().get("bos_token")
    bos_id = encoder.token_to_id(bos_token) if bos_token else None
    if bos_token and bos_id is None:
        raise CheckpointError(f"the bos_token {bos_token!r} of {folder / 'tokenizer_config.json'} is in no vocabulary")
    adds_bos = settings.add_bos_token if settings.add_bos_token is not None else bos_id in encoder.encode("").ids
    return bos_id if adds_bos else None


def _read_stop_ids(path: Path, config: _ModelConfig) -> tuple[int, ...]:
    generation = _read_settings(path, _GenerationConfig) if path.exists() else _GenerationConfig()
    ids = config.eos_token_id if generation.eos_token_id is None else generation.eos_token_id
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (ids,)

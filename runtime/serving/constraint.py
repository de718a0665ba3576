"""Finds the tokens that a JSON schema allows next in an answer.

    the request's tokens so far -> llguidance's matcher -> [vocab_size] of bool, for `sampling.py`

The matcher's state depends on the tokens alone, so a request continues in the same way on another rank. Once the JSON
is complete, only the first of the stop ids is allowed, and never before. If the library is installed, the rank reads
the vocabulary from the checkpoint's tokenizer.json while it loads. That takes seconds for 129,280 tokens; in a step,
every rank of the unit would wait for it. The gateway compares the file's digest with its own file's, because with
another vocabulary the same tokens are other text.
"""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime.checkpoint import file_digest, read_json
from runtime.errors import CheckpointError, RequestFailure
from runtime.protocol.json_grammar import explain_schema_refusal, is_installed, json_matcher, read_vocabulary
from runtime.serving.request import Constraint, Request

__all__ = ["Constraints"]

TOKENIZER = "tokenizer.json"
MAX_FRESH = 32  # assumed: a rank's callers use fewer schemas; a matcher takes some MiB


class Constraints:
    """The JSON constraints of one rank's requests. Its model has `vocab_size` tokens."""

    def __init__(self, checkpoint: Path, vocab_size: int) -> None:
        self._checkpoint, self._vocab_size = checkpoint, vocab_size
        self._tokenizers: dict[int, Any] = {}  # by end-of-text token: one entry, unless gateways differ
        self._fresh: dict[tuple[Any, ...], Any] = {}  # matchers at an answer's start, by schema and end of text
        self.tokenizer_digest = _digest(checkpoint / TOKENIZER) if is_installed() else None
        end_of_text = _end_of_text(checkpoint)
        if self.tokenizer_digest is not None and end_of_text is not None:
            with contextlib.suppress(RequestFailure):  # the first request that needs it fails with the reason
                self._tokenizer(end_of_text)

    def allowed_tokens(self, request: Request) -> Tensor | None:
        """Return whether each token may come next, `[vocab_size]`; None if all may.

        At a request's first call its matcher is made, which then follows the generated tokens. Raises
        RequestFailure if the schema cannot be followed.
        """
        if request.sampling.json_schema is None:
            return None
        if request.constraint is None:
            request.constraint = self._new_constraint(request.sampling.json_schema, request.sampling.stop_ids)
        constraint = request.constraint
        constraint.matcher.consume_tokens(request.generated[constraint.num_seen :])
        constraint.num_seen = len(request.generated)
        _check(constraint.matcher)
        bits = np.frombuffer(constraint.matcher.compute_bitmask(), dtype=np.uint8)
        _check(constraint.matcher)
        allowed_V = np.unpackbits(bits, bitorder="little", count=self._vocab_size)
        return torch.from_numpy(allowed_V).to(torch.bool)

    def _new_constraint(self, schema: str, stop_ids: list[int]) -> Constraint:
        """Return a schema's matcher at the beginning of an answer, copied from an earlier request's if there is one."""
        fresh = self._fresh.get((schema, *stop_ids[:1]))
        return Constraint((self._new_matcher(schema, stop_ids) if fresh is None else fresh).deep_copy())

    def _new_matcher(self, schema: str, stop_ids: list[int]) -> Any:
        reason = explain_schema_refusal(schema)
        if reason is not None:
            raise RequestFailure(f"its answer cannot be held to a JSON schema: {reason}")
        if not stop_ids:
            raise RequestFailure("its answer must be JSON and has no token to end with")
        matcher = json_matcher(self._tokenizer(stop_ids[0]), schema)
        _check(matcher)
        self._fresh[schema, stop_ids[0]] = matcher
        if len(self._fresh) > MAX_FRESH:
            self._fresh.pop(next(iter(self._fresh)))
        return matcher

    def _tokenizer(self, end_of_text: int) -> Any:
        file = self._checkpoint / TOKENIZER
        if end_of_text not in self._tokenizers:
            try:
                made = read_vocabulary(file, self._vocab_size, end_of_text)
            except (ValueError, RuntimeError, OSError) as error:
                raise RequestFailure(f"{file.name} cannot be used for JSON: {error}") from None
            if _digest(file) != self.tokenizer_digest:
                raise RequestFailure(f"{file.name} cannot be used for JSON: it changed after this rank started")
            self._tokenizers = {end_of_text: made}
        return self._tokenizers[end_of_text]


def _digest(file: Path) -> str | None:
    """Return a file's digest; None if it cannot be read."""
    try:
        return file_digest(file)
    except CheckpointError:
        return None


def _end_of_text(checkpoint: Path) -> int | None:
    """Return the id of the checkpoint's first token that ends a text, found as the gateway finds it.

    Return None if there is no such token.
    """
    for path in (checkpoint / "generation_config.json", checkpoint / "config.json"):
        ids = read_json(path).get("eos_token_id") if path.exists() else None
        if ids is not None:
            return ids[0] if isinstance(ids, list) else ids
    return None


def _check(matcher: Any) -> None:
    if matcher.is_error():
        reason = matcher.get_error().partition("\n")[0]  # the rest is the library's state
        raise RequestFailure(f"its answer can no longer be held to the JSON schema: {reason or 'it left the grammar'}")

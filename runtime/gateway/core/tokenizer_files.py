"""Load the tokenizer of a checkpoint, and check that its files are those that the deployment began with.

A checkpoint may change while a deployment runs. A gateway that starts again would then answer the same prompt
differently, and differently from the gateway beside it. So it exits with a sentence that names the files. Its
supervisor starts it again, and it serves once the files are back.

The gateways of a deployment remember the digests of the first files in one file, as they do for the weights
(`served_weights.py`). `served_tokenizer.py` deals with ranks that have another tokenizer.
"""

import logging
from pathlib import Path

from runtime.checkpoint import file_digest
from runtime.errors import RuntimeFailure
from runtime.gateway.core.tokenizer import TOKENIZER_FILES, Tokenizer, load_tokenizer
from runtime.gateway.ranks.served_tokenizer import RANKS_FILE, ServedTokenizer
from runtime.gateway.ranks.served_weights import keep_first, read_kept

__all__ = ["load_served_tokenizer"]

log = logging.getLogger(__name__)


def load_served_tokenizer(folder: Path, memory: Path | None) -> tuple[Tokenizer, ServedTokenizer]:
    """Load the tokenizer from a checkpoint folder. Return it, and the digest by which ranks' tokenizers are compared.

    The file `memory`, if given, keeps the digests of the tokenizer's files from the first load. Raises RuntimeFailure
    if the files have other digests now.
    """
    before = _digests(folder)
    first = (
        _format_lines(before)
        if memory is None
        else _recall_first(memory, "\n".join(_format_lines(before))).splitlines()
    )
    _check_unchanged(folder, before, first)
    tokenizer = load_tokenizer(folder)
    _check_unchanged(folder, _digests(folder), first)  # a file may have changed after its digest was taken
    return tokenizer, ServedTokenizer(before[RANKS_FILE])


def _check_unchanged(folder: Path, digests: dict[str, str], first: list[str]) -> None:
    changed = [name for name, line in zip(digests, _format_lines(digests), strict=True) if line not in first]
    if changed:
        raise RuntimeFailure(
            f"the files in {folder} are not those that this deployment serves with: {', '.join(changed)} changed;"
            " put back what was there and the gateway starts by itself, or `tidemill down` and `tidemill up` to serve"
            " with these"
        )


def _recall_first(memory: Path, digests: str) -> str:
    """Return the digests that the file `memory` keeps. If there is no file, write `digests` to it and return them.

    Raises RuntimeFailure if the file cannot be read.
    """
    first = read_kept(memory)
    if first is not None:
        return first
    try:
        return keep_first(memory, digests)
    except OSError as error:  # a full disk: the next gateway tries again
        log.warning("cannot remember the tokenizer's files in %s: %s", memory, error.strerror)
        return digests


def _digests(folder: Path) -> dict[str, str]:
    """Return name -> digest of the tokenizer's files."""
    paths = [folder / name for name in TOKENIZER_FILES]
    return {path.name: file_digest(path) if path.exists() else "missing" for path in paths}


def _format_lines(digests: dict[str, str]) -> list[str]:
    return [f"{name} {digest}" for name, digest in digests.items()]

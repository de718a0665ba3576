"""The tokenizer's files that a deployment serves with: a gateway that reads others does not serve.

A checkpoint may change while a deployment runs. A gateway that starts again would then answer the same prompt
differently, and differently from the gateway beside it. So it ends with a sentence. Whoever watches it starts it again,
and it serves once the files are back.

The gateways of a deployment remember the digests of the first files, in a file as for the weights
(`served_weights.py`). This compares nothing that ranks read.
"""

import logging
from pathlib import Path

from runtime.checkpoint import digest_of_file
from runtime.errors import RuntimeFailure
from runtime.gateway.served_weights import keep_first, read_first
from runtime.gateway.tokenizer import TOKENIZER_FILES, Tokenizer, load_tokenizer

__all__ = ["load_served_tokenizer"]

log = logging.getLogger(__name__)


def load_served_tokenizer(folder: Path, memory: Path | None) -> Tokenizer:
    """Read a checkpoint folder's tokenizer, whose files must be the first that `memory`, if given, has seen.

    Raise RuntimeFailure.
    """
    if memory is None:
        return load_tokenizer(folder)
    _compare(folder, memory)
    tokenizer = load_tokenizer(folder)
    _compare(folder, memory)  # a file may have changed between its digest and its use
    return tokenizer


def _compare(folder: Path, memory: Path) -> None:
    found = [f"{name} {_digest(folder / name)}" for name in TOKENIZER_FILES]
    first = _first(memory, "\n".join(found)).splitlines()
    changed = [line.split()[0] for line in found if line not in first]
    if changed:
        raise RuntimeFailure(
            f"this deployment serves with other files than are now in {folder}: {', '.join(changed)} changed; put back"
            " what was there and the gateway starts by itself, or `tidemill down` and `tidemill up` to serve with these"
        )


def _first(memory: Path, found: str) -> str:
    """Return what `memory` says, which is `found` where it said nothing before. Raise RuntimeFailure."""
    first = read_first(memory)
    if first is not None:
        return first
    try:
        return keep_first(memory, found)
    except OSError as error:  # a full disk: the next gateway tries again
        log.warning("cannot remember the tokenizer's files in %s: %s", memory, error.strerror)
        return found


def _digest(path: Path) -> str:
    return digest_of_file(path) if path.exists() else "missing"

"""The optional manifest beside a checkpoint's `config.json`, which identifies its weights.

The planner never opens weights. `tidemill checkpoint digest` does, and writes the manifest. Its sha256 goes into launch
files, so a rank rejects other weights than the planned ones: ranks compare each tensor with it. The planner only checks
that it belongs to this config, because a stale manifest would identify old weights.
"""

import json
from pathlib import Path
from typing import Any

from planner.facts.digest import digest_of_bytes
from planner.facts.files import read_file
from planner.problems.finding import Finding

__all__ = ["MANIFEST", "read_weights_digest"]

MANIFEST = "tidemill-checkpoint.json"
VERSION = 1
MAX_BYTES = 100 * 2**20  # ranks read no more of it


def read_weights_digest(config: Path, written: str, config_digest: str) -> str | Finding | None:
    """Return the sha256 of the manifest beside `config`, or None; `written` is the config's path in the spec."""
    path = config.with_name(MANIFEST)
    if not path.exists():
        return None
    if not path.is_file():  # a FIFO would be waited for
        return _wrong(written, f"{MANIFEST} is not a file")
    try:
        content = read_file(path, MAX_BYTES)
    except OSError as error:
        return _wrong(written, error.strerror or str(error))
    document = _parsed(content)
    if document.get("version") != VERSION or not isinstance(document.get("files"), dict):
        return _wrong(written, f"{MANIFEST} is no manifest of version {VERSION}")
    if document.get("config_digest") != config_digest:
        return _wrong(written, f"{MANIFEST} is of another config.json")
    return digest_of_bytes(content)


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _wrong(written: str, reason: str) -> Finding:
    rule = "S308 must agree with the manifest beside it"
    fix = "write the manifest again with tidemill checkpoint digest, or remove it"
    return Finding("model.config", written, rule, reason, fix)

"""The manifest beside a checkpoint's `config.json`, where somebody has written one: what names its weights.

The planner never opens weights. `tidemill checkpoint digest` has, and the sha256 of the file that it wrote goes into
launch files, so that a rank refuses other weights than were planned for. Ranks compare what it says of each tensor.
Here it only has to be of this config, because a stale manifest would name weights that are gone.
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
MAX_BYTES = 100 * 2**20  # as much as ranks read of it


def read_weights_digest(config: Path, written: str, config_digest: str) -> str | Finding | None:
    """Return the sha256 of the manifest beside the file `config`, which the spec calls `written`; None without one."""
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

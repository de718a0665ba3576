"""The optional manifest beside a checkpoint's `config.json`, which identifies its weights.

The planner never opens weights. `tidemill checkpoint digest` does, and writes the manifest. Its sha256 goes into launch
files. Ranks compare each tensor with the manifest, and reject weights that were not planned. The planner only
checks that the manifest belongs to this config, because a stale one would identify old weights.
"""

import json
from pathlib import Path
from typing import Any

from planner.facts.digest import digest_of_bytes
from planner.facts.files import read_optional_file
from planner.problems.finding import Finding

MANIFEST = "tidemill-checkpoint.json"
VERSION = 1
MAX_BYTES = 100 * 2**20  # ranks read no larger manifest


def read_weights_digest(config: Path, written: str, config_digest: str) -> str | Finding | None:
    """Return the sha256 of the manifest file beside `config`, None if there is none, or a finding if it is wrong.

    It is wrong if it is unreadable or of another version, or if it belongs to a `config.json` whose digest is not
    `config_digest`. `written` is the config's path as the spec writes it.
    """
    try:
        content = read_optional_file(config.with_name(MANIFEST), MAX_BYTES)
    except OSError as error:
        return _wrong(written, f"{MANIFEST} cannot be read: {error.strerror or error}")
    if content is None:
        return None
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

"""The options that a spec adds to the command of an engine's servers.

These come after the plan's own options. None may be one that the plan decides: `rules/engine.py` refuses those.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

Option = tuple[str, ...]  # an option's name and values


def own_options(args: Mapping[str, Any]) -> Iterator[Option]:
    """Yield an option for each of `args`, sorted by name: `true` as a flag, lists as words, mappings as JSON."""
    for name, value in sorted(args.items()):
        yield (f"--{name}", *_words(value))


def _words(value: Any) -> Iterator[str]:
    if value is True:
        return
    for each in value if isinstance(value, list) else [value]:
        yield json.dumps(each, sort_keys=True) if isinstance(each, dict) else str(each)

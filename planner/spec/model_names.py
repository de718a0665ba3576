"""Names of models as others write them: `deepseek-ai/DeepSeek-R1` on a hub is `deepseek-r1` in the catalog.

A fix only mends a spelling. Another version, or another size, is another model.
"""

import re
from typing import Any

from planner.families import MODELS
from planner.problems.fix import close_to

__all__ = ["catalog_name", "is_hub_name", "is_path", "named_on_hub"]

PATH = re.compile(r"\.{0,2}/|.*\.json$")  # how a path begins or ends, and no name of a model
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # of an owner and a model
VERSION = re.compile(r"[a-z]*[0-9][a-z0-9.]*")  # r1, v3.2, qwen3, 235b, a22b
OF_A_DATE = re.compile(r"[-_][0-9]{4,}$")  # a checkpoint's, such as R1-0528: the shapes are those of the name before it


def is_path(written: str) -> bool:
    """Return whether `written` begins or ends as paths do."""
    return PATH.match(written) is not None


def catalog_name(written: str) -> str | None:
    """Return the model of the catalog that `written` spells otherwise, or None."""
    meant = None if is_path(written) else close_to(written, list(MODELS))
    is_same = meant and VERSION.findall(meant) == VERSION.findall(OF_A_DATE.sub("", written.casefold()))
    return meant if is_same else None


def is_hub_name(written: Any) -> bool:
    """Return whether `written` is an owner and a model, as `mistralai/Mixtral-8x7B-v0.1`."""
    return isinstance(written, str) and not is_path(written) and HUB_NAME.fullmatch(written) is not None


def named_on_hub(written: Any) -> str | None:
    """Return the model of the catalog that a hub's name such as `deepseek-ai/DeepSeek-R1` says, or None."""
    return catalog_name(written) if is_hub_name(written) else None

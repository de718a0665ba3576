"""The warnings of a plan that is carried out, as programs read them."""

from collections.abc import Sequence
from typing import Any

from planner.problems.errors import Problem

__all__ = ["warnings_json"]


def warnings_json(warnings: Sequence[Problem]) -> dict[str, Any]:
    """Return the key of `--format json` that holds `warnings`; none where there are none, as in `validate`."""
    return {"warnings": [problem.as_json() for problem in warnings]} if warnings else {}

"""Models of the catalog: what their published `config.json` says, from `published.json`, with its source.

An entry there has the keys of that file which its family reads. A source is a repository, a commit and a path.
"""

import json
from pathlib import Path

from planner.facts.model import Model
from planner.families.read import model_of

__all__ = ["MODELS"]


def _published() -> dict[str, Model]:
    entries = json.loads(Path(__file__).with_suffix(".json").read_text())
    models = {name: model_of(entry["config"], entry["source"]) for entry in entries for name in entry["names"]}
    wrong = [name for name, model in models.items() if not isinstance(model, Model)]
    assert not wrong, f"the catalog's own configs are right: {wrong}"
    return {name: model for name, model in models.items() if isinstance(model, Model)}


MODELS = _published()

"""The models of the catalog, read from the keys of their published `config.json` in `published.json`.

An entry has the keys that its family reads, and a source: a repository, a commit and a path. `alike.json` names other
checkpoints that have the same shapes as a model in the catalog.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.facts.model import Model
from planner.families.read import model_of
from planner.problems.fix import is_misspelling

FOLDER = Path(__file__).parent


class _Published(Mapping[str, Model]):
    """The catalog of published models: name -> model.

    Each model is made on first use, because a command needs all names but only one model.
    """

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self._entries = {name: entry for entry in entries for name in entry["names"]}
        self._made: dict[str, Model] = {}

    def __getitem__(self, name: str) -> Model:
        if name not in self._made:
            entry = self._entries[name]
            model = model_of(entry["config"], entry["source"])
            assert isinstance(model, Model), f"the catalog's own configs are right: {name}"
            self._made[name] = model
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


MODELS: Mapping[str, Model] = _Published(json.loads((FOLDER / "published.json").read_text()))

# name of another checkpoint -> the catalog's model with the same shapes
ALIKE: Mapping[str, str] = {each["name"]: each["is"] for each in json.loads((FOLDER / "alike.json").read_text())}


def find_spelling(name: str) -> str | None:
    """Return the name of the catalog's model that a `name` means; None if it means none.

    The name may be misspelt, or have an owner (`deepseek-ai/DeepSeek-R1`). Another size, version or format of weights
    is another model.
    """
    last = name.rpartition("/")[2]
    return next((ALIKE.get(each, each) for each in (*MODELS, *ALIKE) if is_misspelling(last, each)), None)

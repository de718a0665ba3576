"""Models of the catalog: what their published `config.json` says, from `published.json`, with its source.

An entry there has the keys of that file which its family reads. A source is a repository, a commit and a path.
`alike.json` has names of further checkpoints whose shapes are those of one in the catalog.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.facts.model import Model
from planner.facts.terms import Precision
from planner.families.read import model_of

__all__ = ["ALIKE", "ALIKE_IN", "MODELS"]

FOLDER = Path(__file__).parent


class _Published(Mapping[str, Model]):
    """The catalog: name -> model.

    A model is made when it is first asked for: every command needs all names, and one model.
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

_FURTHER = json.loads((FOLDER / "alike.json").read_text())

# A further checkpoint -> the catalog's model that has its shapes, and its precision where that is another.
ALIKE: Mapping[str, str] = {entry["name"]: entry["is"] for entry in _FURTHER}
ALIKE_IN: Mapping[str, Precision] = {entry["name"]: entry["precision"] for entry in _FURTHER if "precision" in entry}

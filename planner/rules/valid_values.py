"""The values of a spec as rules between fields read them, before anything is planned.

A value is present if its field is valid by itself. A file or catalog entry is present if it was found.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from planner.facts.catalog import GPUS, Gpu
from planner.facts.engines import ENGINES, OURS
from planner.facts.exchange import EXCHANGES
from planner.facts.model import Model
from planner.facts.terms import PHASES, EngineName, Phase
from planner.problems.finding import Unknown
from planner.spec.fields import Partial

NOT_THERE = object()
ITEM = re.compile(r"\.[0-9]+")


@dataclass(frozen=True)
class ValidValues:
    """The valid values of a spec, by dotted path. Reading a wrong or missing value with `[]` raises Unknown."""

    data: Mapping[str, Any]  # raw data of the file
    values: Mapping[str, Any]  # dotted path -> valid value; with defaults, files and catalog entries
    renamed: frozenset[str]  # paths of fields with a misspelt key, and their sections
    auto_paths: frozenset[str] | None = None  # paths with `auto` in the file; None if the planner made the data

    def __getitem__(self, path: str) -> Any:
        """Return the value at `path`, which may lead into a list item. Raises Unknown if it is wrong or missing.

        Returns None for a key that a valid list item lacks.
        """
        value = self.values.get(path, NOT_THERE)
        return self._item_value(path) if value is NOT_THERE else value

    def get(self, path: str) -> Any:
        """Return the value at `path`, or None if it is wrong or missing."""
        return self.values.get(path)

    def expand_paths(self, pattern: str) -> Iterator[str]:
        """Yield the paths that match `pattern`, where `*` is each item of a list."""
        before, star, after = pattern.partition(".*")
        if not star:
            yield pattern
            return
        for index in self._indices(before):
            yield from self.expand_paths(f"{before}.{index}{after}")

    def require(self, path: str) -> None:
        """Raise Unknown if the value at `path` is wrong or missing."""
        self[path]

    def is_given(self, path: str) -> bool:
        """Return whether the file has a value at `path`, which is SECTION.FIELD, even if that value is wrong."""
        section, _, key = path.partition(".")
        fields = self.data.get(section)
        return isinstance(fields, dict) and fields.get(key) is not None

    def is_open(self, *paths: str) -> bool:
        """Return whether the file says `auto` at one of `paths`, and the field at the last of them has no value yet."""
        return bool(self.autos & set(paths)) and paths[-1] not in self.values

    @cached_property
    def phases(self) -> list[Phase]:
        """The phases that have a section in the file, in the order of PHASES."""
        return [phase for phase in PHASES if phase in self.sections]

    @cached_property
    def sections(self) -> frozenset[str]:
        """The names of the file's sections, and the correct paths of fields whose keys are misspelt."""
        return self.renamed | {name for name, section in self.data.items() if section is not None}

    @property
    def is_written(self) -> bool:
        """Whether a user wrote the data. Otherwise the planner made it."""
        return self.auto_paths is not None

    @property
    def autos(self) -> frozenset[str]:
        """The paths that are `auto` in the file, decided ones included. Raises Unknown if the planner made the data."""
        if self.auto_paths is None:
            raise Unknown("auto")
        return self.auto_paths

    @property
    def model(self) -> Model:
        """The shapes of the spec's model."""
        shapes: Model = self["model.shapes"]
        return shapes

    @property
    def gpu(self) -> Gpu:
        """The figures of the cluster's GPU."""
        device: Gpu = self["cluster.device"]
        return device

    @property
    def engine(self) -> EngineName | None:
        """The engine's name; None if it is wrong or not written."""
        name: EngineName | None = self.get("engine.name") or self.get("engine")
        return name

    @cached_property
    def num_units(self) -> dict[Phase, int]:
        """Phase -> the largest number of its units in any window."""
        counts: dict[Phase, int] = {phase: self[path] for phase in PHASES if (path := f"{phase}.units") in self.values}
        others = self.get("schedule.other_days") or []
        for window in chain(self.get("schedule.windows") or [], *(each.get("windows", []) for each in others)):
            counts = {phase: max(number, window.get(f"{phase}_units") or 0) for phase, number in counts.items()}
        if not counts:
            raise Unknown("units")
        return counts

    def gpus_per_unit(self, phase: Phase) -> int | None:
        """Return how many GPUs a unit of `phase` can have on the nodes that other phases leave.

        Return None if there are too few nodes, or if a size is unknown.
        """
        nodes, per_node = self.get("cluster.nodes"), self.get("cluster.gpus_per_node")
        if nodes is None or per_node is None or f"{phase}.units" not in self.values:
            return None
        counts = self.num_units
        taken = {each: count * max(1, (self.get(f"{each}.ep_size") or 1) // per_node) for each, count in counts.items()}
        num_nodes = (nodes if isinstance(nodes, int) else len(nodes)) - len(self.get("cluster.spares") or ())
        left = num_nodes - (sum(taken.values()) - taken[phase])
        return left // counts[phase] * per_node if left >= counts[phase] > 0 else None

    def exchange_test(self, phase: Phase) -> Callable[[int], bool] | None:
        """Return a function that tells whether the engine supports an EP size.

        Return None if the engine supports all sizes, or if a value that decides this is unknown.
        """
        name, per_node = self.engine or OURS, self.get("cluster.gpus_per_node")
        if name == OURS or name not in ENGINES or per_node is None or "cluster.device" not in self.values:
            return None
        version: str = self.get("engine.version") or ENGINES[name].versions[-1]
        exchange = EXCHANGES[name].get(version, {}).get(phase)
        if exchange is None:
            return None
        gpu = GPUS.get(self.get(f"{phase}.gpu") or "", self.gpu)
        attention_tp = self.values.get(f"{phase}.attention_tp", 1)
        return lambda ep_size: ep_size == attention_tp or exchange.takes(ep_size, per_node, gpu)

    @property
    def largest_group(self) -> int | None:
        """The number of GPUs of a node if the engine keeps each attention group on one node; else None."""
        name = self.engine
        if name is None or name not in ENGINES or ENGINES[name].groups_span_nodes:
            return None
        per_node: int | None = self.get("cluster.gpus_per_node")
        return per_node

    def _indices(self, path: str) -> Iterable[int]:
        """Return the indices of the valid items in the list at `path`."""
        try:
            items = self[path]
        except Unknown:
            return self._right_items.get(path, ())
        return range(len(items) if isinstance(items, list) else 0)

    @cached_property
    def _right_items(self) -> Mapping[str, Sequence[int]]:
        """List path -> indices of its valid items, for each list that also has wrong items."""
        found: dict[str, list[int]] = {}
        for section, _, index in (path.rpartition(".") for path in self.values):
            if index.isdecimal():
                found.setdefault(section, []).append(int(index))
        return found

    def _item_value(self, path: str) -> Any:
        """Return the value at `path` in a list item.

        Raises Unknown if there is no such item, or if the item had wrong fields and lacks this one.
        """
        if (found := ITEM.search(path)) is None:
            raise Unknown(path)
        value = self.values.get(path[: found.start()])
        for part in path[found.start() + 1 :].split("."):
            if value is None or (isinstance(value, Partial) and part not in value):
                raise Unknown(path)
            value = value[int(part)] if isinstance(value, list) else value.get(part)
        return value

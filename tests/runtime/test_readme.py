"""The README names every room, `docs/metrics.md` every metric, and queries in `docs` ask for metrics that exist."""

import ast
import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client import CollectorRegistry

import runtime
from runtime.expert_parallel.epochs.document import first_standing
from runtime.expert_parallel.epochs.switch import Switch
from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.traffic import ExchangeTime
from runtime.gateway.telemetry.metrics import GatewayMetrics
from runtime.kv.host_memory import HostMemory
from runtime.kv.tiers.loading import TierCounters
from runtime.launch import read_unit_launch
from runtime.serving.scheduler import Scheduler
from runtime.worker.rank_metrics import RankMetrics
from runtime.worker.step_times import StepTimes
from tests.runtime.launch_documents import UNIT, seal, write

FOLDER = Path(runtime.__file__).parent
README = FOLDER / "README.md"
DOCS = Path(__file__).parents[2] / "docs"
METRICS = DOCS / "metrics.md"
MOST_WORDS = 900
READY = {"name": "d0", "phase": "decode", "is_ready": True, "ranks": (), "straggler": (0, 2.0), "refusal": "because"}


def rows(page):
    """Return the cells of every table row on `page` whose first cell begins with a name."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(cell):
    """Return the words between backticks."""
    return cell.split("`")[1::2]


def sentence(path):
    """Return the first line of a file's docstring."""
    return ast.get_docstring(ast.parse(path.read_text())).splitlines()[0]


def test_every_room_is_named_with_its_sentence():
    """Each room has a row with the first line of its docstring, and each row has a room."""
    rooms = {f"{path.parent.relative_to(FOLDER)}/": sentence(path) for path in FOLDER.glob("*/**/__init__.py")}
    named = {cells[0].strip("`"): cells[1] for cells in rows(README) if names(cells[0])[0].endswith("/")}

    assert named == rooms


def test_every_file_outside_the_rooms_is_named():
    """Each file outside the rooms is in their list, and each name there is a file."""
    files = {path.name for path in FOLDER.glob("*.py")} - {"__init__.py"}
    listed = README.read_text().partition("\nOutside the rooms:\n")[2].partition("\n## ")[0].strip().splitlines()
    named = {name for line in listed for name in names(line.partition(":")[0])}

    assert named == files


@pytest.mark.parametrize("room", sorted(FOLDER.glob("*/**/__init__.py")), ids=lambda path: path.parent.name)
def test_every_file_of_a_room_says_what_it_is(room):
    """Each file of a room begins with a docstring."""
    for path in room.parent.glob("*.py"):
        assert sentence(path), path


def test_the_readme_is_a_page():
    """The README has at most 900 words."""
    assert len(README.read_text().split()) <= MOST_WORDS


@pytest.fixture
def families(small_config, random_model, tmp_path):
    """All metrics of ranks and gateway, with samples."""
    launch = read_unit_launch(write(tmp_path, seal(UNIT)))
    ranks, gateway = RankMetrics(launch, rank=0), CollectorRegistry()
    ranks.watch(random_model(small_config))
    ranks.watch_requests(
        Scheduler(SimpleNamespace(num_pages=1, num_free_pages=1, memory=HostMemory(), host=None), launch.limits)
    )
    ranks.watch_disk(TierCounters(misses=Counter(absent=1), dropped=Counter(off=1)))
    ranks.watch_steps(StepTimes(ExchangeTime()))
    ranks.watch_switches(Switch(launch, SoloGroup(), [], first_standing(launch)))
    GatewayMetrics(gateway, launch.model.name).phases.sample([SimpleNamespace(**READY)])
    return [*ranks.registry.collect(), *gateway.collect()]


def test_every_metric_is_explained(families):
    """Each metric of ranks and gateway has a row with its labels, and each row has a metric."""
    measured = {family.name + "_total" * (family.type == "counter"): family for family in families}
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    explained = {names(cells[0])[0]: cells for cells in rows(METRICS)}

    assert explained.keys() == {name.removeprefix("tidemill_") for name in measured}
    assert {name: cells[1] for name, cells in explained.items()} == {
        name.removeprefix("tidemill_"): family.type for name, family in measured.items()
    }
    assert labels - {"model_name", "unit", "rank", "le"} == {
        label for cells in explained.values() if len(cells) == 4 for label in names(cells[2])
    }
    assert len(measured) > 15


def queries():
    """Return every query of the dashboard and of the alert rules, by its panel or alert."""
    panels = json.loads((DOCS / "grafana-dashboard.json").read_text())["panels"]
    shown = [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]
    (group,) = yaml.safe_load((DOCS / "prometheus-rule.yaml").read_text())["spec"]["groups"]
    return [*shown, *((rule["alert"], rule["expr"]) for rule in group["rules"])]


def test_every_query_asks_for_metrics_and_labels_that_exist(families):
    """Those of the dashboard and of the alert rules, against what ranks and gateway show."""
    labels_of = {}
    for sample in (sample for family in families for sample in family.samples):
        labels_of.setdefault(sample.name, set()).update(sample.labels)
    for place, query in queries():
        labels = {
            label
            for found in re.findall(r"(?:by|on) \(([^)]*)\)|\{(\w+)", query)
            for label in re.findall(r"\w+", "".join(found))
        }
        asked = re.findall(r"tidemill_\w+", query)

        assert asked, place
        assert labels_of.keys() >= set(asked), place
        assert labels <= set().union(*(labels_of[name] for name in asked)), place
    assert len(queries()) > 30

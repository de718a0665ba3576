"""The README shows every room of the house, and every metric on its walls."""

from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry

import runtime
from runtime.gateway.metrics import GatewayMetrics
from runtime.launch import read_unit_launch
from runtime.serving.scheduler import Scheduler
from runtime.worker.rank_metrics import RankMetrics
from tests.runtime.launch_documents import UNIT, sealed, write
from tests.runtime.on_cpu import new_cache

FOLDER = Path(runtime.__file__).parent
TABLES = [line.split("|")[1] for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("| `")]
NAMED = {name for cell in TABLES for name in cell.split("`")[1::2]}


@pytest.mark.parametrize(("folder", "prefix"), [("", ""), ("model", "model/"), ("gateway", "")])
def test_every_file_is_explained(folder, prefix):
    """Each module's name stands in the first column of a table; no row names one that is gone."""
    files = {f"{prefix}{path.name}" for path in (FOLDER / folder).glob("*.py") if path.name != "__init__.py"}
    named = {name for name in NAMED if name.endswith((".py", "/"))}

    assert files <= named
    assert all((FOLDER / name).exists() or (FOLDER / "gateway" / name).exists() for name in named)


def test_every_metric_is_explained(small_config, random_model, tmp_path):
    """A rank's and the gateway's stand in the first column of a table, with the labels that say of what they are."""
    launch = read_unit_launch(write(tmp_path, sealed(UNIT)))
    ranks, gateway = RankMetrics(launch, rank=0), CollectorRegistry()
    ranks.watch(random_model(small_config))
    ranks.watch_requests(Scheduler(new_cache(small_config, 64, torch.float32), launch.limits))
    GatewayMetrics(gateway, launch.model.name)
    families = [*ranks.registry.collect(), *gateway.collect()]
    names = {family.name + "_total" * (family.type == "counter") for family in families}
    labels = {label for family in families for sample in family.samples for label in sample.labels}

    assert {name.removeprefix("tidemill_") for name in names} <= NAMED
    assert labels - {"model_name", "unit", "rank", "le"} <= NAMED
    assert len(names) > 15

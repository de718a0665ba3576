"""The deployments of `tests/planner/data/deployments.yaml`: their specs, and why an engine refuses them."""

import json
from pathlib import Path

import yaml

from planner.engines.limits import engine_refusals
from planner.spec.check import check_document
from planner.spec.yaml import parse_document

__all__ = ["DEPLOYMENTS", "refusals_of", "spec_of"]

TABLE = Path(__file__).parents[1] / "data/deployments.yaml"
DEPLOYMENTS = yaml.load(TABLE.read_text(), Loader=yaml.CSafeLoader)


def spec_of(deployment):
    """The spec, without mistakes."""
    data = {"version": 1, "name": "published"} | deployment["spec"]
    return check_document(parse_document(json.dumps(data), str(TABLE.with_name("spec.yaml"))))


def refusals_of(deployment):
    """Why its engine cannot run it, as problems; none where it can."""
    spec = spec_of(deployment)
    return [spec.locate(each) for each in engine_refusals(spec)]

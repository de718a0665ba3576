"""The deployments of `tests/planner/data/deployments.yaml`: their specs, and why an engine refuses them."""

import json
from pathlib import Path

import yaml

from planner.candidate.candidate import Candidate
from planner.rules.check import check_document
from planner.rules.table import findings_at
from planner.spec.yaml import parse_document

__all__ = ["DEPLOYMENTS", "engine_refusals", "refusals_of", "spec_of"]

TABLE = Path(__file__).parents[1] / "data/deployments.yaml"
DEPLOYMENTS = yaml.load(TABLE.read_text(), Loader=yaml.CSafeLoader)


def spec_of(deployment):
    """The spec, without mistakes."""
    data = {"version": 1, "name": "published"} | deployment["spec"]
    return check_document(parse_document(json.dumps(data), str(TABLE.with_name("spec.yaml"))))


def refusals_of(deployment):
    """Why its engine cannot run it, as problems; none where it can."""
    return engine_refusals(spec_of(deployment))


def engine_refusals(spec):
    """Why its engine cannot run `spec`, apart from weights that are missing."""
    found = findings_at(Candidate.of(spec), "rendered")
    return [each for each in found if each.id != "S702"]

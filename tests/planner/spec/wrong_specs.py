"""The cases of `wrong_specs.yaml`, and how each is brought about."""

import json
from pathlib import Path

import yaml

from planner.problems.fix import apply_change
from planner.spec.yaml import parse_document
from tests.planner.conftest import SPEC
from tests.planner.layout.test_memory import PAIR

__all__ = ["CASES", "changed", "data_of", "with_load_file"]

CASES = yaml.load((Path(__file__).parent / "wrong_specs.yaml").read_text(), Loader=yaml.CSafeLoader)


def data_of(text):
    """What stands in a spec, as plain data."""
    return parse_document(text, "spec.yaml").data


def changed(case):
    """The text of the base of `case` with its values in place."""
    base = PAIR if case.get("base") == "pair" else data_of(SPEC)
    return json.dumps(apply_change(base, case["change"]), indent=1)


def with_load_file(name):
    """The right spec with measured loads."""
    return SPEC.replace("  alpha: 1.01\n  seed: 0\n", f"  file: {name}\n")

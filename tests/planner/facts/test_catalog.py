"""The facts: sourced, complete, and nowhere else."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from planner.facts.catalog import ASSUMED, GPUS, Gpu
from planner.families import MODELS

ROOT = Path(__file__).parents[3]
FIGURES = [
    field.name for field in fields(Gpu) if field.name not in ("device", "sources", "nvlink_leaves_node", "lacks_fp4")
]
SOURCE = re.compile(r"github\.com/[\w-]+/[\w.-]+ ([0-9a-f]{8} [\w/.{},-]+|issue [0-9]+|pull request [0-9]+)")
NAMES = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in (MODELS.keys() | GPUS.keys()) - {"cpu"}), re.I)


@pytest.mark.parametrize("name", GPUS)
def test_every_figure_of_a_gpu_has_a_source(name):
    """A repository, a commit and a path, or an issue; or it is marked as assumed. Nothing else has a source."""
    gpu = GPUS[name]
    unsourced = [
        figure
        for figure, source in gpu.sources.items()
        if not (SOURCE.match(source) or source.startswith(f"{ASSUMED}: "))
    ]

    assert gpu.sources.keys() == {figure for figure in FIGURES if getattr(gpu, figure) is not None}
    assert unsourced == []


@pytest.mark.parametrize("name", sorted(GPUS.keys() - {"cpu"}))
def test_every_gpu_has_all_figures(name):
    """Only a domain of nodes has a size of them, and only newer GPUs a rate of FP4."""
    assert {figure for figure in FIGURES if getattr(GPUS[name], figure) is None} <= {
        "node_gpus",
        "fp4_tflops",
    }
    assert (GPUS[name].fp4_tflops is None) == GPUS[name].lacks_fp4 or name in ("mi300x", "mi325x")


@pytest.mark.parametrize("name", sorted(GPUS.keys() - {"cpu"}))
def test_usable_memory_is_near_what_the_gpu_is_sold_as(name):
    """GB and GiB are not mixed up: between the nominal GB and the same number of GiB."""
    gpu = GPUS[name]

    assert gpu.nominal_gb * 1e9 <= gpu.usable_bytes <= gpu.nominal_gb * 2**30


def test_what_nobody_read_is_marked():
    """The list of assumed figures; one that is found leaves it."""
    assumed = [
        (name, figure)
        for name, gpu in GPUS.items()
        for figure, source in gpu.sources.items()
        if source.startswith(ASSUMED)
    ]

    assert assumed == [("gb200", "nominal_gb"), ("mi325x", "usable_bytes"), ("mi355x", "usable_bytes")]


@pytest.mark.slow
def test_no_model_and_no_gpu_is_named_outside_the_catalog():
    """Code that asks for a name would plan only what it knows. Prose in docstrings may name them."""
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value[:40]}"
        for package in ("planner", "stacks", "runtime")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "catalog.py"
        for node in strings(ast.parse(path.read_text()))
        if NAMES.search(node.value)
    ]
    named += [path.name for path in (ROOT / "templates").glob("*.j2") if NAMES.search(path.read_text())]

    assert named == []


def strings(tree):
    """Every text in code, without docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]

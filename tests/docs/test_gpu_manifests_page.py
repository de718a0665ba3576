"""The page of GPU manifests says what is rendered: each row is looked up in the output."""

import re

import pytest
import yaml

from planner.compiler import compile_plan
from planner.manifests.render import KUSTOMIZATION, render_files
from planner.rules.check import check_spec
from tests.docs.rooms_table import ROOT
from tests.templates.gpu_plans import container_of, of_kind, pod_of, unit_of

PAGE = (ROOT / "docs" / "gpu-manifests.md").read_text()
SPEC = ROOT / "stacks" / "specs" / "h800-one-pair.yaml"
FACTS = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])
ROW = re.compile(
    r"^\| (?P<setting>[^|]+) \| [^|]+ \| (?P<object>\w+) \| `(?P<path>[^`]+)` \| `(?P<value>.*)` \|$", re.M
)
ROWS = [match.groupdict() for match in ROW.finditer(PAGE)]
DECODE = "deepseek-r1-decode-0"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """The plan of the shipped spec, whose section the page replaces."""
    spec = yaml.safe_load(SPEC.read_text())
    path = tmp_path_factory.mktemp("page") / "spec.yaml"
    path.write_text(yaml.safe_dump(spec | FACTS))
    return compile_plan(check_spec(path))


@pytest.fixture(scope="module")
def objects(plan):
    """What it renders."""
    files = render_files(plan.with_sections(refusals=()))
    return [yaml.load(text, Loader=yaml.CSafeLoader) for name, text in files.items() if name != KUSTOMIZATION]


def found(document, path):
    """What stands at a path of the page."""
    for key in re.findall(r"[^.\[\]]+(?=[.\[]|$)|\[[^]]+\]", path):
        name = key.strip("[]")
        if isinstance(document, list):
            numbered = document[int(name)] if name.isdecimal() else None
            document = numbered or next(item for item in document if name in (item.get("mountPath"), item.get("name")))
        else:
            document = document[name]
    return document


def test_the_page_has_its_rows():
    """So that the test below looks at all of them."""
    assert len(ROWS) == PAGE.count("\n| ") - 9  # two heads, and the seven rows of what is not in this layout
    assert {row["object"] for row in ROWS} >= {"container", "pod", "unit", "gateway", "Namespace"}


def test_the_pages_section_is_warned_of_nothing(plan):
    """Its volumes hold what the pods read, and its image is named."""
    assert plan.warnings == ()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["setting"])
def test_each_row_is_as_rendered(objects, row):
    """Object, path and value."""
    by_word = {
        "container": lambda: container_of(objects, DECODE),
        "pod": lambda: pod_of(objects, DECODE),
        "unit": lambda: unit_of(objects, DECODE),
        "gateway": lambda: container_of(objects, "deepseek-r1-gateway"),
        "gateway_pod": lambda: pod_of(objects, "deepseek-r1-gateway"),
        "PodDisruptionBudget": lambda: of_kind(objects, "PodDisruptionBudget")["deepseek-r1-decode"],
        "PodMonitor": lambda: of_kind(objects, "PodMonitor")["deepseek-r1-runtime"],
    }
    document = by_word.get(row["object"], lambda: next(iter(of_kind(objects, row["object"]).values())))()

    assert found(document, row["path"]) == yaml.safe_load(row["value"])

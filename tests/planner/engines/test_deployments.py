"""Published deployments of today's models plan and render on the engine that they are for, or say why not."""

import pytest

from planner.compiler import compile_plan
from planner.manifests.render import render_files
from tests.planner.engines.deployments import DEPLOYMENTS, refusals_of, spec_of

by_name = pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["what"])


@by_name
def test_an_engine_runs_what_was_published_for_it_or_says_why_not(deployment):
    """Only what is named in the table stands against it."""
    assert [each.rule[:4] for each in refusals_of(deployment)] == deployment.get("refused", [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "deployment", [each for each in DEPLOYMENTS if "refused" not in each], ids=lambda deployment: deployment["what"]
)
def test_it_plans_and_renders(deployment):
    """With the sizes that were published, in every unit."""
    plan = compile_plan(spec_of(deployment))
    units = [each for name, each in plan.launch_documents.items() if name != "gateway.launch.json"]

    assert render_files(plan)
    for unit in units:
        words = unit["container"]["args"]
        said = dict(zip(words, [*words[1:], ""], strict=True))
        assert {name: said.get(name) for name in deployment["told"]} == deployment["told"]

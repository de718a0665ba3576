"""What a deployment is made from."""

from pathlib import Path

import pytest

from planner.cli import main
from planner.problems.errors import CallError, SpecError
from stacks.program.source import Source
from tests.stacks.deployments import DEMO_SPEC


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """The demo's plan in a file."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    assert main(["plan", str(DEMO_SPEC), "-o", str(path)]) == 0
    return str(path)


@pytest.fixture(scope="module")
def text():
    """The demo's spec as a program would make it: the files that it names are anywhere."""
    return DEMO_SPEC.read_text().replace("../../", f"{DEMO_SPEC.parents[2]}/")


def test_paths_and_contents_deploy_the_same(plan, text):
    """A spec is planned and a plan is not; the spec may come with the plan before it."""
    content = Path(plan).read_text()
    sources = (
        Source(spec=str(DEMO_SPEC)),
        Source(spec=text),
        Source(plan=plan),
        Source(plan=content),
        Source(spec=text, previous=plan),
        Source(spec=text, previous=content, overlays=("{}",)),
    )

    assert len({each.deployed.digest for each in sources}) == 1


def test_an_overlay_as_text_changes_the_spec(text):
    """The later one wins."""
    first, second = "{kubernetes: {namespace: a}, name: one}", "kubernetes:\n  namespace: b\n"

    deployed = Source(spec=text, overlays=(first, second)).deployed

    assert (deployed.name, deployed.kubernetes.namespace) == ("one", "b")


def test_a_mistake_in_a_text_is_named_by_the_input_and_its_line(text):
    """A text has no file name."""
    with pytest.raises(SpecError) as error:
        _ = Source(spec=text, overlays=("name: one\nnodez: 3\n",)).deployed

    assert [(each.file, each.line) for each in error.value.findings] == [("overlays[0]", 2)]


def test_the_verdict_is_that_of_pulumis_way_to_change(plan, text):
    """Equal plans restart nobody; without a previous plan nothing is compared."""
    other = Source(spec=text, previous=plan, overlays=("{kubernetes: {image: registry.example/tidemill:2}}",))

    assert Source(spec=text).verdict == "not_compared"
    assert Source(spec=text, previous=plan).verdict == "no_restart"
    assert other.verdict == "outage"


def test_a_plan_is_no_spec(plan):
    """It would be deployed without its overlays and its previous plan, which nobody would notice."""
    for given in (plan, Path(plan).read_text()):
        with pytest.raises(CallError, match=r"spec must be a spec; .* set plan to it instead"):
            _ = Source(spec=given).deployed


def test_an_empty_setting_is_not_made(text):
    """Pulumi.yaml gives optional settings an empty default."""
    empty = {"spec": text, "plan": "", "previous": "", "overlays": None}

    assert Source.parse(empty) == Source(spec=text)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "exactly one of spec and plan must be set; neither is set; set spec to a spec, or plan to a plan"),
        (
            {"spec": "a", "plan": "b"},
            "exactly one of spec and plan must be set; both are set; set spec to a spec, or plan to a plan",
        ),
        (
            {"plan": "b", "previous": "a"},
            "previous must come with spec; a plan is not planned again; leave it out, or give the spec",
        ),
        (
            {"plan": "b", "overlays": ["a"]},
            "overlays must come with spec; a plan is not planned again; leave it out, or give the spec",
        ),
        ({"spec": 3}, "spec (3) must be a path or the content; it is no text; write it as text"),
        (
            {"spec": "a", "overlays": [""]},
            'overlays[0] ("") must be a path or the content; it is no text; write it as text',
        ),
        (
            {"spec": "a", "overlays": "b"},
            "overlays (b) must be a list; overlays apply one after the other; write [prod.yaml]",
        ),
    ],
)
def test_values_that_make_no_deployment_are_refused(values, message):
    """R301 to R304: in one line, before any file is read."""
    with pytest.raises(CallError) as error:
        _ = Source.parse(values).deployed

    assert [problem.message for problem in error.value.findings] == [message]


def test_a_spec_is_no_plan():
    """S906: who sets `plan` does not want to plan."""
    with pytest.raises(CallError) as error:
        _ = Source(plan=str(DEMO_SPEC)).deployed

    assert error.value.findings[0].rule.startswith("S906")


@pytest.mark.parametrize("name", ["spec", "plan", "previous", "overlays"])
@pytest.mark.parametrize("given", ["czNjcmV0", "s3cret" * 1000, "s3\0cret"])
def test_a_text_that_is_no_path_is_not_shown(name, given, text):
    """R305: it may be content with secrets in it, encoded in one line."""
    values = {name: [given] if name == "overlays" else given}
    if name in ("previous", "overlays"):
        values["spec"] = text
    with pytest.raises(CallError) as error:
        _ = Source.parse(values).deployed

    (finding,) = error.value.findings
    assert finding.rule.startswith("R305")
    assert given not in finding.message


def test_a_content_that_is_no_unicode_is_refused():
    """Half a character cannot be encoded."""
    with pytest.raises(SpecError):
        _ = Source(spec="name: \ud800\n").deployed

"""Every alert leads to a section of the runbook, and every call in the documentation is one that a command takes."""

import re
import shlex

import pytest
import yaml

from planner.command.run import new_parser
from stacks import cli
from tests.docs.rooms_table import ROOT

DOCS = ROOT / "docs"
RUNBOOK = DOCS / "operating.md"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md")])
BLOCK = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.M | re.S)
INIT_WRITES = {"--flux": "clusters", "--github": ".github"}  # option of `gitops init` -> the folder that it writes
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}[|/]|\[|\.\.\.")  # SPEC|PLAN.json, [-f OVERLAY]: how a command is described


def anchors(page):
    """The anchors of a page's headings, as forges make them."""
    return {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)", page, re.M)}


def calls(page):
    """The calls of `tidemill` in a page's blocks, without what a shell does with them."""
    for block in BLOCK.findall(page.read_text()):
        for line in block.replace("\\\n", "").splitlines():
            call = re.sub(r"^\$ ", "", line.strip())
            if call.startswith("tidemill ") and not PLACEHOLDER.search(call):
                yield call


def test_every_alert_names_a_section_that_exists_and_is_in_its_table():
    """Whoever is woken by an alert reads what to do."""
    (group,) = yaml.safe_load((DOCS / "prometheus-rule.yaml").read_text())["spec"]["groups"]
    text = RUNBOOK.read_text()
    named = {rule["alert"]: rule["annotations"]["runbook"] for rule in group["rules"]}
    rows = dict(re.findall(r"^\| (`Tidemill.*`) \| \[.*\]\((#.*)\) \|$", text, re.M))
    told = {
        alert: f"docs/operating.md{section}" for names, section in rows.items() for alert in re.findall(r"\w+", names)
    }

    assert named == told
    assert {section.partition("#")[2] for section in named.values()} <= anchors(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_call_in_the_documentation_is_taken(page):
    """Commands, options and choices are those of today; files are not looked at."""
    for call in calls(page):
        words = shlex.split(call, comments=True)[1:]
        until = next((n for n, word in enumerate(words) if re.fullmatch(r"[|&;]+|\d?>.*", word)), len(words))
        parser = new_parser("")
        cli._add_commands(parser.add_subparsers(), words)
        parser.parse_args(words[:until])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_rendered_folder_is_named_as_a_whole(page):
    """Its plan is spread over files of no interest to a user: commands take the folder."""
    assert re.findall(r"\bdeploy/\S*plan\.json", page.read_text()) == []


def test_the_tutorial_commits_what_its_commands_wrote():
    """Each path of its `git add` is one that `init`, `render` or `gitops init` wrote before, so Git finds it."""
    blocks = "".join(BLOCK.findall((DOCS / "tutorial.md").read_text()))
    before, _, after = blocks.partition("git add ")
    written = {"spec.yaml"} if re.search(r"^tidemill init ", before, re.M) else set()
    written |= set(re.findall(r" -o (\S+)", before)) | set(re.findall(r" > ?(\w\S*)", before))
    written |= {folder for option, folder in INIT_WRITES.items() if f" {option} " in before}

    added = after.partition("\n")[0].split()
    assert "deploy" in added
    assert set(added) <= written


def test_calls_are_found():
    """So the test above is about something."""
    assert sum(1 for page in PAGES for _ in calls(page)) > 40

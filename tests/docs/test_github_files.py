"""Issue forms and the release workflow are what GitHub reads, and the version has its place in the changelog.

`tests/cluster/test_gitops_files.py` gives the workflow to actionlint.
"""

import re
import subprocess
import sys
import tomllib

import pytest

from tests.docs.rooms_table import ROOT

FOLDER = ROOT / ".github"


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("github-workflows", sorted((FOLDER / "workflows").glob("*.yml"))),
        ("github-issue-forms", sorted((FOLDER / "ISSUE_TEMPLATE").glob("*.yml"))),
    ],
)
def test_githubs_files_have_their_schema(schema, paths):
    """GitHub publishes one for each kind."""
    pytest.importorskip("check_jsonschema")
    call = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, paths)]
    done = subprocess.run(call, check=False, capture_output=True, text=True)

    assert paths
    assert done.returncode == 0, done.stdout


def test_a_workflow_pins_its_actions():
    """A commit names each, since a tag can be moved."""
    used = re.findall(r"uses: (\S+)", (FOLDER / "workflows" / "release.yml").read_text())

    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each)] == []


def test_a_release_is_built_with_pinned_tools():
    """Its tools are pinned by version and hash, the package's own by constraints, and nothing else is installed."""
    workflow = (FOLDER / "workflows" / "release.yml").read_text()
    tools = [line for line in (FOLDER / "release-tools.txt").read_text().splitlines() if line and line[0] != "#"]
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    installs = re.findall(r"pip install (.*)", workflow)

    assert [line for line in tools if not re.fullmatch(r"\S+==\S+ --hash=sha256:[0-9a-f]{64}", line)] == []
    assert {each.partition("==")[0] for each in (*needed, "build", "cyclonedx-bom")} <= {
        line.partition("==")[0] for line in tools
    }
    assert [each for each in installs if not each.startswith(("--require-hashes ", "-c constraints.txt "))] == []
    assert "build --no-isolation" in workflow


def test_the_version_is_the_newest_in_the_changelog():
    """A release takes its notes from there."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.M)

    assert newest[1] == version

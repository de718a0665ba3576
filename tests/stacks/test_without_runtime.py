"""The base install has no torch: what needs the runtime says so, the rest works."""

import importlib.util
import json

import pytest

from stacks.cli import main
from tests.stacks.deployments import DEMO_SPEC


@pytest.fixture
def base_install(monkeypatch, tmp_path):
    """As if torch were not installed (a second environment without it is beyond a unit test)."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.usefixtures("base_install")
@pytest.mark.parametrize("words", [["up"], ["generate", "bundled:demo", "--prompt-ids", "ids.json"]])
def test_what_needs_the_runtime_says_how_to_install_it(capsys, words):
    """One line, with the command, and status 1."""
    status = main(words)

    assert status == 1
    assert capsys.readouterr().err == (
        "tidemill: the runtime is not installed; torch is missing; pip install '.[runtime]' in a checkout [R106]\n"
    )


@pytest.mark.usefixtures("base_install")
def test_planning_needs_no_runtime(capsys):
    """A pull-request job plans with the base install."""
    assert main(["plan", str(DEMO_SPEC), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "demo"


@pytest.mark.usefixtures("base_install")
def test_status_needs_no_runtime(capsys):
    """Asking what runs is always possible."""
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "nothing is running here\n"

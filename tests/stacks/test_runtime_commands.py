"""`generate` and `checkpoint` are the runtime's own commands, and fail as every other command does."""

import json
import subprocess

import pytest

from stacks.cli import main
from tests.stacks.deployments import CHECKPOINT

GENERATE = "the following arguments are required: checkpoint, --prompt-ids"
WRONG_CALLS = [
    (["generate"], "generate", GENERATE),
    (
        ["generate", "x", "--prompt-ids", "ids.json", "--ep", "two"],
        "generate",
        "argument --ep: invalid int value: 'two'",
    ),
    (
        ["generate", "x", "--prompt-ids", "ids.json", "--max", "9"],
        "generate",
        "--max 9 is not known; did you mean --max-tokens?",
    ),
    (["checkpoint"], "checkpoint", "the following arguments are required: COMMAND"),
    (["checkpoint", "digest"], "checkpoint digest", "the following arguments are required: PATH"),
]


@pytest.mark.parametrize(("words", "command", "reason"), WRONG_CALLS, ids=lambda value: str(value)[:40])
def test_a_wrong_call_is_one_line(capfd, words, command, reason):
    """Status 2, in the words of the planner's commands."""
    status = main(words)

    assert status == 2
    out, err = capfd.readouterr()
    assert (out, err) == ("", f"tidemill: was called wrongly; {reason}; see tidemill {command} --help [S900]\n")


@pytest.mark.parametrize(("words", "command", "reason"), WRONG_CALLS, ids=lambda value: str(value)[:40])
def test_a_wrong_call_is_json_where_json_is_asked_for(capfd, words, command, reason):
    """The errors of `validate`, and nothing else."""
    status = main([*words, "--format=json"])

    assert status == 2
    out, err = capfd.readouterr()
    (problem,) = json.loads(out)["errors"]
    assert (problem["rule"], problem["fix"]) == ("S900 was called wrongly", f"see tidemill {command} --help")
    assert problem["reason"] == reason
    assert err == ""


def test_a_failure_is_json_where_json_is_asked_for(capfd, tmp_path):
    """Status 1: the call is right, and the folder is not there."""
    status = main(["checkpoint", "digest", str(tmp_path / "none"), "--format=json"])

    assert status == 1
    (problem,) = json.loads(capfd.readouterr().out)["errors"]
    assert problem["rule"] == "R109 checkpoint digest failed"
    assert problem["reason"].startswith(f"there is no checkpoint folder {tmp_path / 'none'}")


def test_a_manifest_is_written_and_described(capfd, tmp_path):
    """JSON says where it is, what it covers, and the digest that launch files name the weights by."""
    status = main(["checkpoint", "digest", str(CHECKPOINT), "-o", str(tmp_path / "manifest.json"), "--format", "json"])

    assert status == 0
    said = json.loads(capfd.readouterr().out)
    assert said["manifest"] == str(tmp_path / "manifest.json")
    assert said["bytes"] == (CHECKPOINT / "model.safetensors").stat().st_size
    assert len(json.loads((tmp_path / "manifest.json").read_text())["files"]) == said["files"] == 1


def test_ctrl_c_is_no_traceback(monkeypatch):
    """The shell's status for it, as of every command."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)

    assert main(["generate", "bundled:demo", "--prompt-ids", "ids.json"]) == 130

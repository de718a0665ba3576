"""A wrong call of `generate` ends with status 2 and one sentence, before any process starts.

Two calls only look wrong.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.__main__ import main

REPOSITORY = Path(__file__).parents[2]

WHOLE = [list(range(32))] * 4


@pytest.fixture
def call(tmp_path, capsys):
    """Run `generate` in this process on prompts as text. Return (status, stderr). No rank starts."""

    def call(prompts, *flags):
        (tmp_path / "ids.json").write_text(prompts)
        try:
            status = main(["generate", "bundled:demo", "--prompt-ids", str(tmp_path / "ids.json"), *flags])
        except SystemExit as exit_:  # argparse's own refusals
            status = exit_.code
        return status, capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    ("prompts", "flags", "words"),
    [
        ("not json", [], "is not JSON"),
        ("{}", [], "must hold a list of lists"),
        ("[[1, 4096]]", [], "token ids from 0 to 4095"),
        ("[[1, -1]]", [], "token ids from 0 to 4095"),
        ("[[1, true]]", [], "token ids from 0 to 4095"),
        ("[[]]", [], "prompt 0"),
        (json.dumps([[7], [7] * 2000]), [], "prompt 1 has 2000 tokens"),
        ("[[7]]", ["--max-tokens", "0"], "at least 1"),
        ("[[7]]", ["--ep", "5"], "--ep (5) must divide the 32 slots"),
        ("[[7]]", ["--ep", "0"], "at least 1"),
        ("[[7]]", ["--dtype", "fp4"], "invalid choice"),
        ("[[7]]", ["--format", "yaml"], "invalid choice: 'yaml'"),
        ("[[1, 4096]]", ["--format", "json"], "token ids from 0 to 4095"),
        ("[[7]]", ["--logits", "no/such/folder/a.npz"], "no such folder"),
        ("[[7]]", ["--logits", "/tmp"], "--logits /tmp is a folder, a file is needed"),
        ("[[7]]", ["--trace", "/tmp"], "--trace /tmp is a folder, a file is needed"),
        ("[[7]]", ["--expert-map", "no/such/map.json"], "No such file"),
        ("7", [], "must hold a list of lists"),
        ("[7]", [], "must hold a list of lists"),
    ],
)
def test_a_wrong_call_is_one_sentence(call, prompts, flags, words):
    """A wrong call ends with status 2, and the last line names the value and the rule."""
    status, stderr = call(prompts, *flags)

    assert status == 2
    assert words in stderr.splitlines()[-1]


def test_the_process_says_no_more_than_the_sentence(run_runtime, tmp_path):
    """The real command prints one line on stderr and nothing on stdout."""
    (tmp_path / "ids.json").write_text("[[1, 4096]]")
    done = run_runtime("generate", "bundled:demo", "--prompt-ids", tmp_path / "ids.json")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"tidemill: prompt 0 of {tmp_path / 'ids.json'} must hold token ids from 0 to 4095\n"


def test_a_log_on_a_full_disk_changes_nothing_but_itself(tmp_path):
    """A full disk under the log changes neither the command nor its status."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "runtime", "node", "--nonsense"], stderr=full, cwd=REPOSITORY, check=False
        )

    assert done.returncode == 2


MISFITS = {
    "too few layers": WHOLE[:3],
    "no layers": [],
    "an expert without a slot": [layer[:-1] for layer in WHOLE],
    "an expert that does not exist": [[*layer, 32] for layer in WHOLE],
    "a negative expert": [[*layer, -1] for layer in WHOLE],
    "layers of different length": [*WHOLE[:3], [*WHOLE[3], 0]],
    "an expert that is no integer": [[0.0, *layer[1:]] for layer in WHOLE],
    "an expert that is true": [[0, True, *layer[2:]] for layer in WHOLE],
    "lists in lists in lists": [[[expert] for expert in layer] for layer in WHOLE],
}


@pytest.mark.parametrize("expert_map", MISFITS.values(), ids=MISFITS)
def test_an_expert_map_that_does_not_fit_is_refused(call, tmp_path, expert_map):
    """A wrong expert map is refused with one sentence of what is needed."""
    (tmp_path / "map.json").write_text(json.dumps(expert_map))

    status, stderr = call("[[7]]", "--expert-map", str(tmp_path / "map.json"))

    assert status == 2
    assert stderr == "tidemill: the expert map needs 4 equal layers with a slot for each of 32 experts\n"


def test_no_prompts_are_no_outputs(generate):
    """No prompts give no outputs, and no error."""
    assert generate([]) == []


def test_fewer_prompts_than_ranks_are_answered(generate):
    """With fewer prompts than ranks, all prompts are answered."""
    flags = ("--max-tokens", 4)

    assert generate([[5, 6]], *flags, "--ep", 2) == generate([[5, 6]], *flags)


def test_a_checkpoint_that_is_not_there_is_named(tmp_path, capsys):
    """A missing checkpoint is named, with status 1."""
    status = main(["generate", str(tmp_path / "none"), "--prompt-ids", "x"])

    assert status == 1
    assert f"there is no checkpoint folder {tmp_path / 'none'}" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--logits", "--trace"])
def test_a_full_disk_is_one_sentence(run_runtime, tmp_path, flag):
    """A full disk is one sentence, with status 1."""
    (tmp_path / "ids.json").write_text("[[7]]")
    done = run_runtime(
        *("generate", "bundled:demo", "--prompt-ids", tmp_path / "ids.json", "--max-tokens", "1", flag, "/dev/full")
    )

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "tidemill: cannot write /dev/full: No space left on device"

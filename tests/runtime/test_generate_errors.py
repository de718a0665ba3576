"""Calls of `generate` that are wrong: exit status 2 and one sentence, before any process is started."""

import json
import subprocess
import sys

import pytest

WHOLE = [list(range(32))] * 4


def generate(tmp_path, prompts, *flags):
    """The command, on prompts given as text."""
    (tmp_path / "ids.json").write_text(prompts)
    command = [sys.executable, "-m", "runtime", "generate", "bundled:demo", "--prompt-ids", str(tmp_path / "ids.json")]
    return subprocess.run([*command, *flags], capture_output=True, text=True, timeout=120, check=False)


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
        ("[[7]]", ["--dtype", "fp8"], "invalid choice"),
    ],
)
def test_a_wrong_call_is_one_sentence(tmp_path, prompts, flags, words):
    """Status 2, and the last line says which value and which rule."""
    done = generate(tmp_path, prompts, *flags)

    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("expert_map", [WHOLE[:3], [layer[:-1] for layer in WHOLE], [[*layer, 32] for layer in WHOLE]])
def test_an_expert_map_that_does_not_fit_is_refused(tmp_path, expert_map):
    """Too few layers, an expert without a slot, an expert that does not exist."""
    (tmp_path / "map.json").write_text(json.dumps(expert_map))

    done = generate(tmp_path, "[[7]]", "--expert-map", str(tmp_path / "map.json"))

    assert done.returncode == 2
    assert done.stderr == ("tidemill: the expert map needs 4 layers with a slot for each of 32 experts\n")


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
    """Status 1: the call is right, the folder is missing."""
    command = [sys.executable, "-m", "runtime", "generate", str(tmp_path / "none"), "--prompt-ids", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 1
    assert "there is no checkpoint folder" in done.stderr

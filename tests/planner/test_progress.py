"""Progress on a terminal's stderr."""

import os
import pty
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from planner import cli
from planner.experts import cli as experts_cli
from planner.experts import experts
from planner.plan import estimated

CODE = """
import time
from planner.command.printed import show_progress
with show_progress("counting") as report:
    for number in range(8):
        report(f"part {number}", number / 8)
        time.sleep(0.2)
print("done")
"""


def _on_terminal(code):
    """What a Python program writes to a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    ):
        os.close(theirs)
        found = b""
        try:
            while more := os.read(ours, 4096):
                found += more
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    return found.decode()


@pytest.mark.slow
def test_a_terminal_sees_the_part_and_the_time_left():
    """The bar names what is under way and what is left at this rate, and goes when the work is done."""
    shown = _on_terminal(CODE)

    assert "counting: part 5" in shown
    assert "left" in shown
    assert shown.rstrip().endswith("done")


def test_without_a_terminal_nothing_is_shown():
    """A log of a job has no bars in it."""
    done = subprocess.run([sys.executable, "-c", CODE.replace("0.2", "0")], capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.fixture
def seen(monkeypatch):
    """A function that notes for each later call of a function whether progress was shown: [True, True]."""
    is_shown, noted = [False], []

    @contextmanager
    def shown(_):
        is_shown[0] = True
        yield lambda *_: None
        is_shown[0] = False

    def see(module, name):
        function = getattr(module, name)

        def seen_function(*arguments, **options):
            noted.append(is_shown[0])
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, seen_function)
        return noted

    for module in (cli, experts_cli):
        monkeypatch.setattr(module, "show_progress", shown)
    return see


def test_predictions_are_made_while_progress_is_shown(seen, spec_file, capsys):
    """A plan's predictions may take longer than its decisions."""
    noted = seen(estimated, "expected_sections")

    assert cli.main(["plan", str(spec_file())]) == 0
    assert noted == [True]


def test_a_map_is_made_while_progress_is_shown(seen, tmp_path, capsys):
    """A large one may take seconds."""
    noted = seen(experts, "balance")
    loads = tmp_path / "loads.npy"
    np.save(loads, np.array([[100, 1, 1, 1]]))

    assert cli.main(["experts", str(loads), "--gpus", "4", "--nodes", "1"]) == 0
    assert noted == [True]

"""Progress on a terminal's stderr."""

import os
import pty
import subprocess
import sys

import pytest

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

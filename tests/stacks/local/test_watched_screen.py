"""`status --watch` on a real terminal, over the real demo."""

import signal
import termios
import time
import urllib.request
from contextlib import closing

import pytest

from tests.terminal import Terminal

SHOW, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"  # of a terminal's other screen
CURSOR = b"\x1b[?25h"


def watching(demo):
    return closing(Terminal(demo.command("status", "--watch"), demo.environment))


def test_a_terminal_gets_a_screen_that_follows_its_size(demo):
    """Units with their load, requests and tokens; 40 columns have no room for all of it; q ends it."""
    with watching(demo) as terminal:
        seen = terminal.wait_for(SHOW, b"prefill-0", b"decode-0", b"balance", b"0 running", b"q ends")
        body = b'{"model": "tidemill-demo", "prompt": "Return a list of", "max_tokens": 8}'
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"http://{demo.host}:8000/v1/completions", body, headers)).read()
        seen = terminal.wait_for(b"TPOT", since=seen)
        terminal.resize(15, 40)
        time.sleep(1)  # what was drawn for 80 columns is read first
        seen = terminal.wait_for(b"q ends", since=len(terminal.written))
        seen = terminal.wait_for(b"decode-0", b"q ends", since=seen)
        terminal.type(b"q")

        assert terminal.end() == 0
        assert b"balance" not in terminal.written[seen:]
        assert terminal.written.rindex(LEAVE) > terminal.written.rindex(SHOW)
        assert termios.tcgetattr(terminal.theirs) == terminal.modes


@pytest.mark.parametrize(("end", "status"), [("ctrl-c", 0), ("sigterm", 143)])
def test_the_terminal_is_restored_however_the_screen_ends(demo, end, status):
    """Its other screen is left, the cursor is shown, and keys are echoed again."""
    with watching(demo) as terminal:
        terminal.wait_for(SHOW, b"q ends")
        terminal.type(b"\x03") if end == "ctrl-c" else terminal.process.send_signal(signal.SIGTERM)

        assert terminal.end() == status
        assert terminal.written.rindex(LEAVE) > terminal.written.rindex(SHOW)
        assert CURSOR in terminal.written[-40:]
        assert termios.tcgetattr(terminal.theirs) == terminal.modes

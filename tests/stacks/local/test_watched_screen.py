"""`status --watch` on a real terminal, over the real demo."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
import urllib.request
from contextlib import contextmanager

import pytest

SHOW, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"  # of a terminal's other screen
CURSOR = b"\x1b[?25h"
DEADLINE_S = 60


class Terminal:
    """A program on a pseudo terminal of 80 x 24."""

    def __init__(self, command, environment):
        self.ours, self.theirs = pty.openpty()
        self.resize(24, 80)
        self.modes = termios.tcgetattr(self.theirs)
        self.written = b""
        self.process = subprocess.Popen(
            command,
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env=environment | {"TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def resize(self, rows, columns):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, *texts, since=0):
        """Read until all `texts` have been written after the position `since`; return the position reached."""
        until = time.monotonic() + DEADLINE_S
        while not all(text in self.written[since:] for text in texts):
            assert time.monotonic() < until, self.written[since:]
            if select.select([self.ours], [], [], 0.1)[0]:
                self.written += os.read(self.ours, 2**16)
        return len(self.written)

    def type(self, keys):
        os.write(self.ours, keys)

    def end(self):
        """The exit status; what is still written is read."""
        while self.process.poll() is None:
            if select.select([self.ours], [], [], 0.1)[0]:
                self.written += os.read(self.ours, 2**16)
        while select.select([self.ours], [], [], 0)[0]:
            self.written += os.read(self.ours, 2**16)
        return self.process.returncode


@contextmanager
def watching(demo):
    terminal = Terminal(demo.command("status", "--watch"), demo.environment)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.ours)
        os.close(terminal.theirs)


def test_a_terminal_gets_a_screen_that_follows_its_size(demo):
    """Units with their load, requests and tokens; 40 columns have no room for all of it; q ends it."""
    with watching(demo) as terminal:
        seen = terminal.wait_for(SHOW, b"prefill-0", b"decode-0", b"balance", b"0 running", b"q ends")
        body = b'{"model": "tidemill-demo", "prompt": "Return a list of", "max_tokens": 8}'
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"http://{demo.host}:8000/v1/completions", body, headers)).read()
        seen = terminal.wait_for(b"TPOT", since=seen)
        terminal.resize(12, 40)
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

"""A program on a pseudo terminal, which a test reads and types on."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

DEADLINE_S = 60


class Terminal:
    """A program on a pseudo terminal of 80 x 24."""

    def __init__(self, command, environment, folder=None):
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
            cwd=folder,
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

    def close(self):
        """End the program if it still runs."""
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)

"""The screen of `status --watch` on a terminal: it looks again and again, draws, and ends with q or Ctrl-C.

A look may take seconds, as when a process hangs or a cluster is far away. So a thread takes looks, and this one waits
for keys and draws. When the terminal's size changes, the screen is drawn anew. However it ends, the terminal is as it
was: its other screen is left, its cursor shown, and what is typed is echoed again.
"""

import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from planner.problems.errors import TidemillError
from stacks.live.look import Event, Look
from stacks.live.screen import draw, new_events
from stacks.live.traffic import Traffic, TrafficLog

__all__ = ["has_screen", "watch"]

POLL_S = 0.2  # until a resized terminal is drawn anew
MAX_EVENTS = 200
SIGTERM_STATUS = 143  # 128 + SIGTERM, as shells count
FOOT = "q ends"
CTRL_C = "\x03"

TakeLooks = Callable[[], Sequence[Look]]


def has_screen() -> bool:
    """Return whether stdout is a terminal that can show a screen, and stdin a terminal that delivers keys."""
    return sys.stdout.isatty() and sys.stdin is not None and sys.stdin.isatty() and os.environ.get("TERM") != "dumb"


def watch(take_looks: TakeLooks, every_s: float, when_empty: Callable[[], str]) -> int:
    """Show the deployments' state until q or Ctrl-C. Return 1 if the last look has found a failure, else 0.

    The first look is taken before the screen opens, and its errors are raised. Later errors are shown on the screen.
    `when_empty` returns the text to show while there is no deployment.
    """
    watched = _Watched(take_looks, every_s)
    watched.take()
    console = Console(highlight=False)
    size, seen = None, -1
    with suppress(KeyboardInterrupt), _raw_keys(), _leave_on_sigterm(), _screen(console) as live:
        threading.Thread(target=watched.take_again_and_again, name="looks", daemon=True).start()
        while _read_key(POLL_S) not in ("q", "Q", CTRL_C):
            watched.raise_fault()
            if (size, seen) != (console.size, watched.num_looks):
                size, seen = console.size, watched.num_looks
                live.update(watched.render(console, when_empty), refresh=True)
    return 1 if any(look.has_failed for look in watched.looks) else 0


class _Watched:
    """The deployments on the screen, with their traffic and events so far."""

    def __init__(self, take_looks: TakeLooks, every_s: float) -> None:
        self._take_looks, self._every_s = take_looks, every_s
        self._lock = threading.Lock()
        self._logs: dict[str, TrafficLog] = {}
        self._events: dict[str, deque[Event]] = {}
        self._traffic: dict[str, Traffic] = {}
        self._error: str | None = None
        self._fault: Exception | None = None
        self.looks: Sequence[Look] = ()
        self.num_looks = 0

    def take(self) -> None:
        """Look at all deployments, and record traffic and events. Raises TidemillError if they cannot be read."""
        looks = self._take_looks()
        with self._lock:
            before = {look.name: look for look in self.looks}
            for look in looks:
                log = self._logs.setdefault(look.name, TrafficLog())
                self._traffic[look.name] = log.add(look, time.monotonic())
                events = self._events.setdefault(look.name, deque(maxlen=MAX_EVENTS))
                events.extend(new_events(before.get(look.name), look, time.strftime("%H:%M:%S")))
            self.looks, self._error = looks, None
            self.num_looks += 1

    def take_again_and_again(self) -> None:
        """Take looks until the process ends. An error is shown until the next look succeeds.

        A fault of our own ends the looks. It is kept for `raise_fault`, since nobody sees a thread's traceback here.
        """
        try:
            while True:
                time.sleep(self._every_s)
                try:
                    self.take()
                except TidemillError as error:
                    with self._lock:
                        self._error = str(error)
                        self.num_looks += 1
        except Exception as fault:  # noqa: BLE001  raised again where it ends the command
            self._fault = fault

    def raise_fault(self) -> None:
        """Raise the fault of our own code that has ended the looks, if there was one."""
        if self._fault is not None:
            raise self._fault

    def render(self, console: Console, when_empty: Callable[[], str]) -> RenderableType:
        """Return what to show at the console's present size."""
        width, height = console.size
        with self._lock:
            looks, error = self.looks, self._error
            foot = _foot(error)
            height = max(1, (height - 1 - (error is not None)) // max(1, len(looks)))
            is_ascii = not console.encoding.startswith("utf")
            drawn = [
                draw(
                    look,
                    self._traffic[look.name],
                    list(self._events[look.name]),
                    list(self._logs[look.name].generated),
                    width,
                    height,
                    is_ascii=is_ascii,
                )
                for look in looks
            ]
        return Group(*(drawn or [Text(when_empty())]), *foot)


def _foot(error: str | None) -> list[Text]:
    wrong = [] if error is None else [Text(error, style="bold red", no_wrap=True, overflow="ellipsis")]
    return [*wrong, Text(f"{time.strftime('%H:%M:%S')}  {FOOT}", style="dim", no_wrap=True)]


def _screen(console: Console) -> Live:
    return Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)


def _read_key(timeout_s: float) -> str:
    """Return the next key; empty if none is pressed within `timeout_s`.

    Raises KeyboardInterrupt if the terminal is gone.
    """
    readable, _, _ = select.select([sys.stdin], [], [], timeout_s)
    if not readable:
        return ""
    typed = os.read(sys.stdin.fileno(), 1)
    if not typed:
        raise KeyboardInterrupt
    return typed.decode(errors="replace")


@contextmanager
def _raw_keys() -> Iterator[None]:
    """Deliver keys at once and without echo.

    Ctrl-C arrives as a key; so does Ctrl-Z, which would suspend us in mid-screen.
    """
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        modes: list[Any] = termios.tcgetattr(terminal)
        modes[3] &= ~termios.ISIG
        termios.tcsetattr(terminal, termios.TCSANOW, modes)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextmanager
def _leave_on_sigterm() -> Iterator[None]:
    """End by SystemExit on SIGTERM, so that the terminal is restored."""

    def leave(*_: object) -> NoReturn:
        sys.exit(SIGTERM_STATUS)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""Check callers' JSON schemas before a rank sees them, in a process of its own (`schema_trial.py`).

    find_fault(caller, schema) -> remembered, or tried: one schema at a time, and callers take turns

The process also parses the schema: 64 KiB take tens of milliseconds, too long for the event loop. It starts with the
first schema, because not everybody asks for JSON and a vocabulary takes memory. Its verdicts are remembered, since
agents send the same schema again and again. One thread talks to it. Callers take turns (`fair_queue.py`), so a caller
who sends many slow schemas delays another caller's by one.
"""

import asyncio
import hashlib
import select
import subprocess
import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec

from runtime.gateway.edge.http_errors import unavailable
from runtime.gateway.tenants.fair_queue import FairQueue, Turn

__all__ = ["Schemas"]

START_TIMEOUT_S = 60  # assumed: 129,280 tokens take seconds
TRIAL_TIMEOUT_S = 10  # assumed: on a busy machine; the trial itself is bounded in CPU time
MAX_WAITING = 32  # assumed: at 0.2 s each, the last one of a lone caller waits for 6 s
COST = 1.0  # the same for each schema, since nobody knows before what it costs
MAX_REMEMBERED = 1024


class Schemas:
    """Finds out which schemas an answer of this model can follow. `file` is its tokenizer.json."""

    def __init__(self, file: Path, vocab_size: int, end_of_text: int | None) -> None:
        self._remembered: OrderedDict[bytes, str | None] = OrderedDict()
        self._trials = _Trials(file, vocab_size, end_of_text)
        self._thread = ThreadPoolExecutor(1, "schemas")
        self._queue = FairQueue()
        self._start_events: dict[Turn, asyncio.Event] = {}
        self._current: Turn | None = None

    async def find_fault(self, caller: str, schema: str) -> str | None:
        """Return the reason why no answer can follow the schema; None if one can.

        Raises ApiError if the schema cannot be checked now.
        """
        key = hashlib.sha256(schema.encode()).digest()
        if key not in self._remembered:
            self._remember(key, await self._try_in_turn(caller, schema))
        self._remembered.move_to_end(key)
        return self._remembered[key]

    def close(self) -> None:
        """End the process. Queued schemas are not checked."""
        self._trials.close()

    def _remember(self, key: bytes, reason: str | None) -> None:
        self._remembered[key] = reason
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    async def _try_in_turn(self, caller: str, schema: str) -> str | None:
        if not self._queue.room(caller, MAX_WAITING):
            raise unavailable("too many JSON schemas are being checked; ask again in a while")
        turn = self._queue.join(caller, COST)
        may_start = self._start_events[turn] = asyncio.Event()
        try:
            self._begin_next()
            await may_start.wait()
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._trials.find_fault, schema)
        except (OSError, EOFError) as error:
            raise unavailable(f"the JSON schema could not be checked: {error}") from None
        finally:
            self._end(turn)

    def _begin_next(self) -> None:
        """Try the first queued schema, unless one is being tried."""
        turn = self._queue.next_turn()
        if turn is not None and self._current is None:
            self._queue.serve(turn)
            self._current = turn
            self._start_events[turn].set()

    def _end(self, turn: Turn) -> None:
        """End a schema's turn to be tried, even one that has not begun. If it was the current turn, begin the next."""
        self._queue.end(turn, COST)
        del self._start_events[turn]
        if self._current is turn:
            self._current = None
            self._begin_next()


class _Trials:
    """The process that tries schemas, as one thread uses it.

    A process that does not answer is replaced when the next schema comes. One that has ended is replaced at once.
    """

    def __init__(self, file: Path, vocab_size: int, end_of_text: int | None) -> None:
        words = [file, vocab_size, *([] if end_of_text is None else [end_of_text])]
        self._command = [sys.executable, "-m", "runtime.gateway.core.schema_trial", *map(str, words)]
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def find_fault(self, schema: str) -> str | None:
        """Return the process's verdict on the schema. Raises EOFError, OSError or TimeoutError if there is none.

        The process may have ended since the last schema, for instance where memory is short. In that case a new process
        is asked, once.
        """
        if self._process is not None:
            with suppress(EOFError, ConnectionError):
                return self._ask(schema)
        return self._ask(schema)

    def _ask(self, schema: str) -> str | None:
        try:
            if self._process is None:
                self._process = self._start()
                self._read_line(self._process, START_TIMEOUT_S)
            assert self._process.stdin is not None
            self._process.stdin.write(msgspec.json.encode(schema) + b"\n")
            self._process.stdin.flush()
            return self._read_line(self._process, TRIAL_TIMEOUT_S)
        except (OSError, EOFError):
            self._end()
            raise

    def close(self) -> None:
        """End the process that tries schemas. Any thread may call this."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._is_closed:
            raise EOFError("the gateway is stopping")
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is meant for the gateway
        )

    def _read_line(self, process: "subprocess.Popen[bytes]", timeout_s: float) -> str | None:
        assert process.stdout is not None
        poll = select.poll()  # select() takes no descriptor over 1,023, and a gateway has more
        poll.register(process.stdout, select.POLLIN)
        if not poll.poll(1000 * timeout_s):
            raise TimeoutError(f"nothing was said of it for {timeout_s} s")
        line = process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the process that tries schemas has ended")
        return msgspec.json.decode(line, type=str | None)

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

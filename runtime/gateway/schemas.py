"""The JSON schemas of callers, checked before a rank sees them, in a process of their own (`schema_trial.py`).

    why_refused(schema) -> known from before -> tried, one schema at a time

The process reads a schema too: one of 64 KiB takes tens of milliseconds, which the event loop does not have. It starts
with the first schema: not everybody asks for JSON, and a vocabulary takes memory. What it said is remembered, since
agents send the same schema again and again. One thread talks to it.
"""

import asyncio
import hashlib
import select
import subprocess
import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from runtime.gateway.http_errors import unavailable

__all__ = ["Schemas"]

START_TIMEOUT_S = 60  # assumed: 129,280 tokens take seconds
TRIAL_TIMEOUT_S = 10  # assumed: on a busy machine; the trial itself is bounded in CPU time
MAX_WAITING = 32  # assumed: at 0.2 s each, the last waits for 6 s
MAX_REMEMBERED = 1024


class Schemas:
    """Knows which schemas an answer can be held to, of the model whose tokenizer.json is `file`."""

    def __init__(self, file: Path, vocab_size: int, end_of_text: int | None) -> None:
        self._remembered: OrderedDict[bytes, str | None] = OrderedDict()
        self._trials = _Trials(file, vocab_size, end_of_text)
        self._thread = ThreadPoolExecutor(1, "schemas")
        self._num_waiting = 0

    async def why_refused(self, schema: str) -> str | None:
        """Return why no answer can be held to the schema, or None. Raise ApiError when that cannot be told now."""
        key = hashlib.sha256(schema.encode()).digest()
        if key not in self._remembered:
            await self._learn(key, schema)
        self._remembered.move_to_end(key)
        return self._remembered[key]

    def close(self) -> None:
        """End the process."""
        self._trials.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _learn(self, key: bytes, schema: str) -> None:
        if self._num_waiting >= MAX_WAITING:
            raise unavailable("too many JSON schemas are being checked; ask again in a while")
        self._num_waiting += 1
        try:
            reason = await asyncio.get_running_loop().run_in_executor(self._thread, self._trials.why_not, schema)
        except (OSError, EOFError) as error:
            raise unavailable(f"the JSON schema could not be checked: {error}") from None
        finally:
            self._num_waiting -= 1
        self._remembered[key] = reason
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)


class _Trials:
    """The process, for one thread. One that says nothing, or has ended, is replaced at the next schema."""

    def __init__(self, file: Path, vocab_size: int, end_of_text: int | None) -> None:
        words = [file, vocab_size, *([] if end_of_text is None else [end_of_text])]
        self._command = [sys.executable, "-m", "runtime.gateway.schema_trial", *map(str, words)]
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def why_not(self, schema: str) -> str | None:
        """Return what the process says of the schema. Raise EOFError, OSError, TimeoutError."""
        try:
            if self._process is None:
                self._process = self._started()
                self._line(self._process, START_TIMEOUT_S)
            assert self._process.stdin is not None
            self._process.stdin.write(msgspec.json.encode(schema) + b"\n")
            self._process.stdin.flush()
            return self._line(self._process, TRIAL_TIMEOUT_S)
        except (OSError, EOFError):
            self._end()
            raise

    def close(self) -> None:
        """End the process, from any thread."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._is_closed:
            raise EOFError("the gateway is stopping")
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is for the gateway
        )

    def _line(self, process: "subprocess.Popen[bytes]", timeout_s: float) -> str | None:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], timeout_s)[0]:
            raise TimeoutError(f"nothing was said of it for {timeout_s} s")
        line = process.stdout.readline()
        if not line:
            raise EOFError("the process that tries schemas has ended")
        return msgspec.json.decode(line, type=str | None)

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

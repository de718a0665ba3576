"""Writes from one rank's memory into another's on the same machine, by NIXL: the process that receives copies nothing.

    decode rank                                      prefill rank
        share(memory)
        describe()  --Proceed(description, address)-->   meet(description) -> peer
                                                         await write(part, peer, address)

UCX carries them: messages through POSIX shared memory, and bytes by process_vm_writev(2), which the kernel allows
between processes of one user and PID namespace. No key guards single pages, so a peer may write to all memory of this
process (SECURITY.md). `sender.py` and `receiver.py` say who writes where, and when memory may be used again.

No socket listens. Over TCP, UCX writes to whatever address a connected peer names, and asks for no key
(`uct_tcp_ep_handle_put_req` in openucx/ucx, src/uct/tcp/tcp_ep.c, 9466d104): that port would be everybody's to write.

What it does not do: reach other machines, or GPUs' memory.
"""

import asyncio
import base64
import ctypes
import importlib
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor

from runtime.errors import RuntimeFailure, WireError

__all__ = ["NixlAgent", "Peer"]

PACKAGE = "nixl_cu13"  # `nixl` itself would install the package for CUDA 12 as well
UCX_SETTINGS = {
    "UCX_TLS": "posix,cma,self",  # see above; NIXL's own setting of it yields to the environment
    "UCX_ERROR_SIGNALS": "",  # a rank's crash is reported by the rank
    "UCX_MEM_MMAP_HOOK_MODE": "none",  # these transports cache no registrations, so libc need not be patched
}
NO_PEER_FAILURE = "none"  # UCX detects no dead peer over shared memory, and refuses to be asked to
WAKE_US = 1_000_000  # the progress thread sleeps until UCX wakes it, and looks by itself once a second
POLL_S = 0.0005  # assumed: between looks at a write, which takes about 2 ms for 4 MiB


class NixlAgent:
    """One rank's NIXL agent. Used from one event loop; NIXL's own thread answers peers meanwhile."""

    def __init__(self) -> None:
        """Start the agent. Raises RuntimeFailure if the package is missing or cannot start."""
        os.environ.update(UCX_SETTINGS)  # libucs reads them when it is loaded
        self._nixl = _load()
        self._errors = tuple(getattr(self._nixl, name) for name in dir(self._nixl) if name.endswith("Error"))
        config = self._nixl.nixlAgentConfig()
        config.syncMode = self._nixl.NIXL_THREAD_SYNC_STRICT
        config.useProgThread, config.pthrDelay = True, WAKE_US  # NIXL's Python class fixes it at 0, which spins
        try:
            self._agent = self._nixl.nixlAgent(secrets.token_hex(16), config)
            self._agent.createBackend("UCX", {"ucx_error_handling_mode": NO_PEER_FAILURE})
        except self._errors as error:
            raise RuntimeFailure(f"NIXL cannot start: {error}") from None

    def share(self, memory: Tensor) -> None:
        """Let peers write to `memory`, a contiguous tensor, for as long as the process lives."""
        self._register(memory.data_ptr(), memory.nbytes)

    def describe(self) -> str:
        """Return the base64 metadata that peers need to reach the memory shared so far."""
        return base64.b64encode(self._agent.getLocalMD()).decode()

    def meet(self, description: str) -> str:
        """Connect to the peer whose `describe()` returned `description`. Return its name.

        Raises WireError if the peer's memory is unreachable.
        """
        try:
            peer: str = self._agent.loadRemoteMD(base64.b64decode(description, validate=True)).decode()
            self._agent.makeConnection(peer, [])
        except (*self._errors, ValueError):
            raise WireError("its memory cannot be reached") from None
        return peer

    def forget(self, peer: str) -> None:
        """Forget a peer's metadata."""
        with suppress(*self._errors):  # the peer may be gone already
            self._agent.invalidateRemoteMD(peer)

    async def write(self, part: memoryview, peer: str, address: int, is_gone: Callable[[], bool]) -> None:
        """Write bytes to an address in a peer's memory. Returns when the bytes are there.

        Raises WireError if they cannot be written, or once `is_gone` says that the peer left. In both cases the write
        has ended.
        """
        here = ctypes.addressof(ctypes.c_char.from_buffer(part))
        try:
            memory = self._register(here, part.nbytes)
            try:
                await self._post(self._range(here, part.nbytes), peer, self._range(address, part.nbytes), is_gone)
            finally:
                self._agent.deregisterMem(memory, [])
        except self._errors:
            raise WireError("its memory cannot be written") from None

    async def _post(self, source: Any, peer: str, target: Any, is_gone: Callable[[], bool]) -> None:
        request = self._agent.createXferReq(self._nixl.NIXL_WRITE, source, target, peer, b"", [])
        try:
            state = self._agent.postXferReq(request, b"")
            while state == self._nixl.NIXL_IN_PROG:
                if is_gone():
                    raise WireError("the decode rank closed the connection")
                await asyncio.sleep(POLL_S)
                state = self._agent.getXferStatus(request)
        finally:
            self._agent.releaseXferReq(request)

    def _register(self, address: int, num_bytes: int) -> Any:
        memory = self._nixl.nixlRegDList(self._nixl.DRAM_SEG, [(address, num_bytes, 0, b"")])
        self._agent.registerMem(memory, [])
        return memory

    def _range(self, address: int, num_bytes: int) -> Any:
        return self._nixl.nixlXferDList(self._nixl.DRAM_SEG, [(address, num_bytes, 0)])


class Peer:
    """Another rank's memory to write to. The peer is given up after the first failure to reach it or to write."""

    def __init__(self, agent: NixlAgent, description: str) -> None:
        """Try to reach the peer with this description."""
        self.description = description
        self._agent = agent
        self._name: str | None = None
        with suppress(WireError):
            self._name = agent.meet(description)

    @property
    def is_writable(self) -> bool:
        """True if the peer was reached and not forgotten, and no write to it has failed."""
        return self._name is not None

    async def write(self, part: memoryview, address: int, is_gone: Callable[[], bool]) -> None:
        """Write bytes to an address of the peer, as `NixlAgent.write` does.

        Raises WireError if they cannot be written.
        """
        if self._name is None:  # another request's write failed
            raise WireError("its memory cannot be written")
        try:
            await self._agent.write(part, self._name, address, is_gone)
        except WireError:
            self.forget()
            raise

    def forget(self) -> None:
        """Forget the peer, and write to it no more."""
        if self._name is not None:
            self._agent.forget(self._name)
            self._name = None


def _load() -> Any:
    try:
        return importlib.import_module(f"{PACKAGE}._bindings")
    except ImportError:
        raise RuntimeFailure(
            "the launch file's kv_cache.transport is nixl, and this process has no package nixl-cu13;"
            " install tidemill[nixl]"
        ) from None

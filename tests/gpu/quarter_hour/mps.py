"""Let several processes use one GPU at the same time, by CUDA's MPS where it is installed and works.

Without it the driver gives each process a slice of time, one after the other: a kernel that waits for a peer waits for
its slice, and all is slower.

The daemon runs in the foreground and so in the part's process group: it ends with the part, whatever happens. It
changes no setting of the GPU. What it says of each client is shown only where it does not work.

Source: CUDA documentation, "Multi-Process Service" (the pipe and log folders, "quit").
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["shared_gpu"]

LISTENS_S, ANSWERS_S, QUITS_S = 5, 15, 5
PROBE = """
import ctypes
cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
raise SystemExit(
    cuda.cuInit(0)
    or cuda.cuDeviceGet(ctypes.byref(device), 0)
    or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
)
"""


@contextlib.contextmanager
def shared_gpu() -> Iterator[dict[str, str]]:
    """Yield the variables of processes that are to share the GPU: none where MPS is not installed or does not work."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        print("MPS is not installed: the ranks' kernels take turns", flush=True)
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="mps", ignore_cleanup_errors=True) as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        said = Path(folder) / "said"
        with said.open("w") as output:
            daemon = subprocess.Popen(
                [control, "-f"], env=os.environ | variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            works = _works(variables)
            print("MPS is on" if works else f"{said.read_text()}MPS does not work here: kernels take turns", flush=True)
            yield variables if works else {}
        finally:
            _end(control, variables, daemon)


def _works(variables: dict[str, str]) -> bool:
    """Return whether a process gets the GPU through the daemon, which takes a moment to listen."""
    deadline = time.monotonic() + LISTENS_S
    while not (Path(variables["CUDA_MPS_PIPE_DIRECTORY"]) / "control").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    with contextlib.suppress(subprocess.TimeoutExpired):
        probe = subprocess.run(
            [sys.executable, "-c", PROBE], env=os.environ | variables, timeout=ANSWERS_S, check=False
        )
        return probe.returncode == 0
    return False


def _end(control: str, variables: dict[str, str], daemon: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        environment = os.environ | variables
        subprocess.run([control], input=b"quit\n", env=environment, timeout=QUITS_S, check=False, capture_output=True)
        daemon.wait(QUITS_S)
    daemon.kill()
    daemon.wait()

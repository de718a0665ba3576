"""Run the parts of a quarter of an hour with one GPU, and keep what each of them found.

    python -m tests.gpu.quarter_hour -o FOLDER [PART ...]

Each part is a process group of its own that is ended with its time, so that nothing hangs. `FOLDER/report.json` is
written after each part and `FOLDER/log.txt` as they speak: if the machine goes away, what was found is there. A part
that fails does not stop the next one. The exit status is 1 if a part failed or was stopped; what is missing fails none.

What `wheels.py` unpacked into a folder of PYTHONPATH is used as it should be: NCCL is preloaded, and kernels that were
compiled ahead are found. `compiled` in the report counts those that DeepGEMM had to compile in a part nevertheless.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.gpu.quarter_hour.compile_ahead import CACHE
from tests.gpu.quarter_hour.parts import MISSING, PARTS, Part

NCCL = "libnccl.so.2"
OUTCOMES = {0: "passed", MISSING: "missing"}


def main() -> int:
    """Run the named parts, or all."""
    by_name = {part.name: part for part in PARTS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(by_name))
    parser.add_argument("-o", type=Path, dest="folder", required=True)
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.parts if name not in by_name]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(by_name)}")
    parts = [by_name[name] for name in arguments.parts] or list(PARTS)
    report = run_all(parts, arguments.folder)
    return int(any(found["outcome"] not in OUTCOMES.values() for found in report.values()))


def run_all(parts: list[Part], folder: Path) -> dict[str, dict[str, object]]:
    """Run them one after the other, and return what each of them found."""
    folder.mkdir(parents=True, exist_ok=True)
    report: dict[str, dict[str, object]] = {}
    for part in parts:
        print(f"== {part.name}: {part.shows} (at most {part.seconds} s)", flush=True)
        report[part.name] = run(part, folder)
        (folder / "report.json").write_text(json.dumps(report, indent=1))
        print(f"== {part.name}: {report[part.name]['outcome']} after {report[part.name]['seconds']} s", flush=True)
    return report


def run(part: Part, folder: Path) -> dict[str, object]:
    """Run one part, with its output in the log and here."""
    figures, log = folder / "figures.json", folder / "log.txt"
    figures.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"tests.gpu.quarter_hour.{part.name}", "-o", str(figures)]
    environment = carried() | os.environ | {"PYTHONUNBUFFERED": "1"}
    began, compiled_before = time.monotonic(), num_compiled(environment)
    with log.open("a") as output, log.open() as said:
        output.write(f"== {part.name}\n")
        output.flush()
        said.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )
        outcome = _ended(process, part.seconds)
        spoken = said.read()
    print(spoken, end="", flush=True)
    found = json.loads(figures.read_text()) if figures.exists() else {}
    figures.unlink(missing_ok=True)
    last = next((line for line in reversed(spoken.splitlines()) if line.strip()), "")
    seconds = round(time.monotonic() - began, 1)
    compiled = num_compiled(environment) - compiled_before
    return {"outcome": outcome, "seconds": seconds, "compiled": compiled, "said": last, "figures": found}


def carried() -> dict[str, str]:
    """Return the variables by which parts find what was unpacked for them."""
    found = {"EP_SUPPRESS_NCCL_CHECK": "1"}  # DeepEP compares NCCL's file with pip's, and another is preloaded
    for folder in map(Path, sys.path):
        if (folder / "deep_gemm").is_dir():
            found["DG_JIT_CACHE_DIR"] = str(folder / CACHE)
        if (folder / NCCL).exists():
            found["LD_PRELOAD"] = str(folder / NCCL)
    return found


def num_compiled(variables: dict[str, str]) -> int:
    """Return how many kernels DeepGEMM's cache has."""
    return len(list(Path(variables.get("DG_JIT_CACHE_DIR", "/nowhere")).glob("cache/*/kernel.cubin")))


def _ended(process: subprocess.Popen[bytes], seconds: int) -> str:
    """Wait for the part, end whatever it left running, and say how it ended."""
    try:
        status = process.wait(seconds)
        outcome = OUTCOMES.get(status, f"failed with {status}")
    except subprocess.TimeoutExpired:
        outcome = f"stopped after {seconds} s"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return outcome


if __name__ == "__main__":
    sys.exit(main())

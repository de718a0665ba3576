"""What runs a quarter of an hour with a GPU, tried without one."""

import json
import os
import struct
import subprocess
import sys
import time

import pytest

from tests.gpu.quarter_hour import __main__ as quarter_hour
from tests.gpu.quarter_hour import compile_ahead, one_gpu, wide_layers
from tests.gpu.quarter_hour.parts import PARTS as PARTS_OF_THE_QUARTER
from tests.gpu.quarter_hour.parts import Part
from tests.gpu.quarter_hour.wheels import FATBIN, install, keep_hopper

PARTS = {
    "right": "import sys; open(sys.argv[2], 'w').write('{\"rate\": 3}'); print('well')",
    "wrong": "assert False, 'two and two are five'",
    "lacking": "print('needs a GPU'); raise SystemExit(77)",
    "hanging": "import os, time; child = os.fork(); child and print(child, flush=True); time.sleep(600)",
}


@pytest.fixture
def run_parts(tmp_path, monkeypatch):
    """Run parts that are these lines of Python."""
    package = tmp_path / "tests" / "gpu" / "quarter_hour"
    package.mkdir(parents=True)
    for name, line in PARTS.items():
        (package / f"{name}.py").write_text(line)
    monkeypatch.chdir(tmp_path)

    def run(*names, seconds=20):
        return quarter_hour.run_all([Part(name, seconds, "a test") for name in names], tmp_path / "found")

    return run


def test_each_part_is_reported_as_it_ended(run_parts, tmp_path):
    """Right, wrong or without what it needs; one that fails does not stop the next."""
    found = run_parts("wrong", "lacking", "right")

    assert [part["outcome"] for part in found.values()] == ["failed with 1", "missing", "passed"]
    assert found["wrong"]["said"] == "AssertionError: two and two are five"
    assert found["lacking"]["said"] == "needs a GPU"
    assert found["right"]["figures"] == {"rate": 3}
    assert json.loads((tmp_path / "found" / "report.json").read_text()) == found


def test_a_part_that_hangs_is_stopped_with_its_children(run_parts):
    """Nothing of it holds the GPU when the next one begins."""
    found = run_parts("hanging", seconds=3)["hanging"]
    child = int(found["said"])

    assert found["outcome"] == "stopped after 3 s"
    assert has_ended(child)


def test_only_hoppers_machine_code_is_kept():
    """Nothing moves: what was another GPU's is zeros."""
    parts = [(1, 120, b"ptx "), (2, 80, b"old "), (2, 90, b"good"), (2, 100, b"new ")]
    entries = b"".join(
        struct.pack("<HHIQ", kind, 0, 64, len(code)) + struct.pack("<IIIII", 0, 0, 0, gpu, 0) + bytes(28) + code
        for kind, gpu, code in parts
    )
    library = bytearray(b"text" + FATBIN + struct.pack("<HHQ", 1, 16, len(entries)) + entries + b"more")
    expected = bytes(library)
    for code in (b"ptx ", b"old ", b"new "):
        expected = expected.replace(code, bytes(4))
    keep_hopper(library)

    assert library == expected


@pytest.fixture
def noted_kernel(tmp_path, monkeypatch):
    """A kernel for which DeepGEMM called the nvcc that only notes, beside an nvcc whose code is what it was asked."""
    toolkit, folder = tmp_path / "toolkit", tmp_path / "kernel.tiles.0123"
    (toolkit / "bin").mkdir(parents=True)
    folder.mkdir()
    for nvcc, script in {"bin/nvcc": '#!/bin/sh\necho "$@" > "$4"\n', "notes": compile_ahead.NOTES}.items():
        (toolkit / nvcc).write_text(script)
        (toolkit / nvcc).chmod(0o755)
    monkeypatch.setattr(compile_ahead, "TOOLKIT", toolkit)
    (folder / "kernel.cu").write_text("source")
    asked = ["elsewhere.cu", "-cubin", "-o", folder / "kernel.cubin", "-std=c++20", "-I/site/include"]
    subprocess.run([toolkit / "notes", *asked], check=True)
    return folder


def test_a_kernel_is_compiled_ahead_as_deep_gemm_asks(noted_kernel):
    """It gets the same flags, and the source that its cache keeps."""
    compile_ahead.compile_kernel(noted_kernel)
    code = (noted_kernel / "kernel.cubin").read_text()

    assert code == f"{noted_kernel}/kernel.cu -cubin -o {noted_kernel}/kernel.cubin -std=c++20 -I/site/include\n"


def test_parts_find_what_was_unpacked_for_them(noted_kernel, tmp_path, monkeypatch):
    """Kernels that were compiled ahead, and the NCCL that is preloaded."""
    load, site = tmp_path / "load", tmp_path / "site"
    compile_ahead.pack([noted_kernel], load / "kernels" / "deep_gemm_cache.tar.xz")
    install(load, site)
    (site / "deep_gemm").mkdir()
    (site / "libnccl.so.2").touch()
    monkeypatch.setattr(sys, "path", [str(site)])
    variables = quarter_hour.carried()

    assert quarter_hour.num_compiled(variables) == 1
    assert variables["LD_PRELOAD"] == str(site / "libnccl.so.2")
    assert variables["EP_SUPPRESS_NCCL_CHECK"] == "1"


def test_units_are_tried_though_one_rank_failed(tmp_path, monkeypatch):
    """What the rank had found is kept, and the units' own figures beside it."""

    def run_ranks(module, size, folder, device, seconds):
        if size > 1:
            return [{"wrong": []}] * size
        (folder / "0.json").write_text('{"wrong": [], "built_s": 9.5}')
        raise one_gpu.RanksFailed("it took too long")

    monkeypatch.setattr(one_gpu, "run_ranks", run_ranks)
    arguments = one_gpu.options("a test").parse_args(["-o", str(tmp_path / "found.json"), "--device", "cpu"])

    assert wide_layers.main(arguments) == 1
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == {"EP1": [{"wrong": [], "built_s": 9.5}], "EP2": [{"wrong": []}] * 2, "EP4": [{"wrong": []}] * 4}


def test_parts_import_nothing_that_a_lent_machine_lacks():
    """It has torch, and of what else the tests need only what `packages.txt` brings."""
    lines = ("import sys", *(f"sys.modules[{name!r}] = None" for name in ("openai", "kubernetes", "pulumi")))
    lines += tuple(f"import tests.gpu.quarter_hour.{part.name}" for part in PARTS_OF_THE_QUARTER)
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def has_ended(pid):
    """Whether the process has ended, or does so within a second."""
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False

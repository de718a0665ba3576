"""Memory that tensors free stays with the process, from its first tensor on."""

import hashlib
import subprocess
import sys

import pytest

from tests.runtime.launch_documents import UNIT, seal, write

PROGRAM = """
import resource, torch
from runtime.kernels.cpu.memory import keep_freed_memory

keep_freed_memory()
faults = []
for _ in range(20):
    rows = torch.ones(48 * 2**20, dtype=torch.uint8)
    in_page = rows.data_ptr() % resource.getpagesize()
    del rows
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[9], in_page)
"""


def test_freed_memory_is_used_again() -> None:
    """A tensor of 48 MiB that comes and goes takes its 12,288 pages from the system once.

    All later rounds together take fewer than one would: a machine short of memory may take idle pages back meanwhile.
    """
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, check=True)
    faults, in_page = map(int, done.stdout.split())

    assert faults < 12_288
    assert in_page == 0


FIRST_TENSOR = """
import os, sys
from pathlib import Path
from torch.utils._python_dispatch import TorchDispatchMode
from runtime.__main__ import main

class FirstTensor(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        print(os.environ.get("THP_MEM_ALLOC_ENABLE"), flush=True)
        os._exit(0)

with FirstTensor():
    main(sys.argv[1:])
"""


@pytest.fixture
def commands(demo, demo_config, free_port, tmp_path):
    """Return each command of `python -m runtime` that makes tensors, with its arguments."""
    (tmp_path / "prompts.json").write_text("[[5]]")
    config_digest = hashlib.sha256((demo / "config.json").read_bytes()).hexdigest()
    unit = seal(
        UNIT,
        expert_map__num_logical_experts=demo_config.n_routed_experts,
        expert_map__physical_to_logical=[list(range(demo_config.n_routed_experts))] * demo_config.num_moe_layers,
        checkpoint__config_digest=f"sha256:{config_digest}",
        ports={name: free_port() for name in UNIT["ports"]},
    )
    here = ("--address", "127.0.0.1", "--leader", "127.0.0.1", "--gateway", "127.0.0.1")
    return {
        "generate": ("bundled:demo", "--prompt-ids", tmp_path / "prompts.json"),
        "rank": ("--launch", write(tmp_path, unit), "--node", "node-0", "--place", "0", "--local-rank", "0", *here),
    }


@pytest.mark.parametrize("command", ["generate", "rank"])
def test_memory_is_kept_before_the_first_tensor(commands, command) -> None:
    """Each command sets the switch for huge pages before torch first reads it."""
    arguments = [sys.executable, "-c", FIRST_TENSOR, command, *map(str, commands[command])]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True, timeout=100)

    assert done.stdout.strip() == "1"

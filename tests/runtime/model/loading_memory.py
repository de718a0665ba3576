"""One rank that loads and says how much memory that took: `loading_memory.py FOLDER DTYPE RANK EP`.

Prints JSON: bytes of an idle process (all is imported, nothing read), of its peak, and of the rank's weights.
"""

import json
import sys
from pathlib import Path

import torch

from runtime.expert_parallel.factory import new_group
from runtime.kernels.precision import DTYPES
from runtime.model.config import read_model_config
from runtime.model.engine import Engine, EngineConfig


def main(folder, dtype, rank, ep):
    torch.set_num_threads(1)
    config = read_model_config(folder)
    idle = resident_bytes("VmRSS")
    expert_map = [list(range(config.n_routed_experts))] * config.num_moe_layers
    engine = Engine(EngineConfig(folder, expert_map, DTYPES[dtype]), new_group(rank, ep))
    weights = sum(parameter.nbytes for parameter in engine.model.parameters())
    peak = resident_bytes("VmHWM")
    print(json.dumps({"idle": idle, "peak": peak, "weights": weights}))


def resident_bytes(field):
    """Return VmRSS (now) and VmHWM (the peak so far); getrusage's would include the parent's at the fork."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return int(kib) * 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

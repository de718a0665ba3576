"""One rank of a decode unit at real sizes: what a step takes and holds, beside the least that it could take."""

import sys

import torch

from tests.gpu import one_rank
from tests.gpu.quarter_hour.parts import MISSING

if __name__ == "__main__":
    if "cpu" not in sys.argv and not torch.cuda.is_available():
        print("no GPU")
        sys.exit(MISSING)
    sys.exit(one_rank.main("decode"))

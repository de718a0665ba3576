"""The words for precision in launch files and on the wire, as torch's types."""

import torch

__all__ = ["DTYPES"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

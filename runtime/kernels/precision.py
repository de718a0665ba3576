"""The words for precision in launch files and on the wire, as torch's type of the model's matrices.

`fp8` is not all FP8: matrices and what they multiply are, dispatched rows too; norms, gate, embedding, head, core
attention, latent KV and every result are BF16. On a CPU it is emulated, with the same numerics (`fp8.py`).
"""

import torch

__all__ = ["DTYPES", "unquantized_dtype"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


def unquantized_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of everything that is never quantised in a model whose matrices are `dtype`."""
    return torch.bfloat16 if dtype == torch.float8_e4m3fn else dtype

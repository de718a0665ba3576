"""The precisions of launch files, as torch's types of the model's matrices.

With `fp8`, matrices, the rows that they multiply and dispatched rows are FP8. Norms, gate, embedding, head, core
attention, latent KV and every result are BF16. On a CPU FP8 is emulated, with the same numerics (`fp8.py`).
"""

import torch

__all__ = ["DTYPES", "unquantized_dtype"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


def unquantized_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of unquantised tensors in a model whose matrices are `dtype`."""
    return torch.bfloat16 if dtype == torch.float8_e4m3fn else dtype

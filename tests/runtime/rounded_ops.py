"""FP32 with rows rounded to e4m3 where FP8 rounds them: FP8's losses, without any of its code.

The rounding is written from the format. A number y between 2^e and 2^(e + 1) becomes the nearest multiple of 2^(e - 3),
in the middle the even one; below 2^-6 the multiples are those of 2^-9. The largest of 128 neighbours becomes 448.
"""

import torch
import torch.nn.functional as F

from runtime.kernels.ops import Ops
from tests.runtime.on_cpu import CPU

GROUP, LARGEST, SMALLEST_EXPONENT, MANTISSA_BITS = 128, 448.0, -6, 3
NEVER_ROUNDED = ("lm_head", "kv_b_proj")  # their rows stay as they are


def round_rows(model):
    """Make an FP32 model round the inputs of its projections and experts."""
    wide = {module.weight.data_ptr() for name, module in model.named_modules() if name.endswith(NEVER_ROUNDED)}
    ops = RoundedOps(wide)
    for module in model.modules():
        if hasattr(module, "ops"):
            module.ops = ops
    return model


class RoundedOps(Ops):
    """The reference with rounded rows, except for the matrices at the addresses `wide`."""

    def __init__(self, wide):
        super().__init__(CPU)
        self._wide = wide

    def linear(self, x_RD, w_OD):
        """Round rows before a projection; `gated_mlp` uses this for the dense MLPs too."""
        return F.linear(x_RD if w_OD.data_ptr() in self._wide else round_codes(x_RD), w_OD)

    def expert(self, rows_RD, gate_up_XD, down_DI, out=None):
        """Round dispatched rows, and the values between the matmuls."""
        gate_RI, up_RI = F.linear(round_codes(rows_RD), gate_up_XD).chunk(2, -1)
        return torch.mm(round_codes(F.silu(gate_RI) * up_RI), down_DI.mT, out=out)


def round_codes(x_RD):
    """Return each row as its codes times its scales."""
    groups = F.pad(x_RD, (0, -x_RD.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP))
    scales = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / LARGEST
    values = groups / scales
    exponents = torch.frexp(values).exponent - 1
    steps = torch.exp2((exponents.clamp(min=SMALLEST_EXPONENT) - MANTISSA_BITS).float())
    return ((values / steps).round() * steps * scales).flatten(-2)[..., : x_RD.shape[-1]]

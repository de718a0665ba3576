"""Muon for the hidden matrices, AdamW for the rest: about half the tokens of AdamW alone for the same loss.

Why it exists: torch's own optimizers hold their state in pickled checkpoints and know no batch of expert matrices.
It does not schedule: the caller passes each step's learning-rate factor.

Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), its quintic coefficients.
"""

import torch
from torch import nn

__all__ = ["Optimizer"]

MUON_RATE, MUON_MOMENTUM, MUON_DECAY = 0.02, 0.95, 0.05
ADAM_RATE, ADAM_BETAS, ADAM_EPS, ADAM_DECAY = 0.005, (0.9, 0.95), 1e-10, 0.02
QUINTIC = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


class Optimizer:
    """Muon and AdamW. The state is a flat dict of tensors, so that a checkpoint is one safetensors file."""

    def __init__(self, network: nn.Module) -> None:
        self.parameters = dict(network.named_parameters())
        self.state = {}
        for name, p in self.parameters.items():
            self.state[f"{name}.momentum"] = torch.zeros_like(p)
            if not uses_muon(name, p):
                self.state[f"{name}.variance"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, number: int, factor: float) -> None:
        """Make update number `number`, counted from 1, with both learning rates multiplied by `factor`."""
        for name, p in self.parameters.items():
            if uses_muon(name, p):
                self.muon(name, p, MUON_RATE * factor)
            else:
                self.adamw(name, p, ADAM_RATE * factor, number)
            p.grad = None

    def muon(self, name: str, p: nn.Parameter, rate: float) -> None:
        """Update the parameter `p` by Nesterov momentum, orthogonalised matrix by matrix."""
        momentum = self.state[f"{name}.momentum"].lerp_(p.grad, 1 - MUON_MOMENTUM)
        direction = p.grad.lerp(momentum, MUON_MOMENTUM)
        if name.endswith("gate_up"):  # two matrices an expert, stored as one
            direction = direction.unflatten(1, (2, -1))
        rows, columns = direction.shape[-2:]
        update = orthogonalize(direction) * max(1, rows / columns) ** 0.5
        p.mul_(1 - rate * MUON_DECAY).sub_(update.reshape(p.shape), alpha=rate)

    def adamw(self, name: str, p: nn.Parameter, rate: float, number: int) -> None:
        """Update the parameter `p` with AdamW (Loshchilov and Hutter 2019). Vectors do not decay."""
        first, second = ADAM_BETAS
        momentum = self.state[f"{name}.momentum"].lerp_(p.grad, 1 - first)
        variance = self.state[f"{name}.variance"].lerp_(p.grad.square(), 1 - second)
        corrected = (variance / (1 - second**number)).sqrt_().add_(ADAM_EPS)
        if p.ndim > 1:
            p.mul_(1 - rate * ADAM_DECAY)
        p.addcdiv_(momentum, corrected, value=-rate / (1 - first**number))


def uses_muon(name: str, p: nn.Parameter) -> bool:
    """Return whether Muon updates the parameter.

    Embedding, output head and gates are tables of rows, not maps between hidden spaces: they stay with AdamW.
    """
    return p.ndim > 1 and name not in ("embed", "head") and not name.endswith("router")


def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """Return roughly the nearest semi-orthogonal matrix to `matrix` [..., rows, columns].

    It is computed by Newton-Schulz in bfloat16.
    """
    a, b, c = QUINTIC
    x = matrix.bfloat16().view(-1, *matrix.shape[-2:])
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).contiguous()
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).float().reshape(matrix.shape)

"""Rotary positions: the angles of every position, stretched by YaRN if the model was.

    angle(position, i) = position * f_i,   f_i = theta^(-2 i / dim),   i = 0 .. dim / 2 - 1

YaRN extends a model from `original_max_position_embeddings` to `factor` times as many positions. Frequencies that turn
more than `beta_fast` times over the original length stay. Those that turn less than `beta_slow` times are divided by
`factor`. Between them is a linear ramp. YaRN also makes attention sharper, by a factor on cos and sin and by one on the
softmax's scale; in the released V3 and V2 configs the first is 1.

Worked example, V3 (theta 10,000, dim 64, factor 40, original 4,096): f_0 .. f_10 stay, f_23 .. f_31 are divided by 40,
and the softmax's scale is multiplied by (0.1 ln 40 + 1)^2 = 1.874.

It knows nothing of heads or a layer's tensors; `mla.py` does.

Sources: YaRN (arXiv 2309.00071) section 3; DeepSeek-V3 `inference/model.py`, precompute_freqs_cis and MLA.__init__;
transformers `modeling_rope_utils.py`, _compute_yarn_parameters.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runtime.errors import CheckpointError

__all__ = ["RotaryTable", "Yarn", "read_rope"]

YARN_REQUIRED = ("factor", "original_max_position_embeddings")
YARN_OPTIONAL = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
OTHER_KEYS = ("type", "rope_type", "rope_theta")


@dataclass(frozen=True)
class Yarn:
    """YaRN's parameters. Names are as published; `mscale` and `mscale_all_dim` are given together or not at all."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None

    @property
    def amplitude(self) -> float:
        """The factor by which YaRN multiplies cos and sin."""
        if self.mscale is None or self.mscale_all_dim is None:
            return self._mscale(1.0)
        return self._mscale(self.mscale) / self._mscale(self.mscale_all_dim)

    @property
    def softmax_factor(self) -> float:
        """The factor by which YaRN multiplies the softmax's scale."""
        return 1.0 if self.mscale_all_dim is None else self._mscale(self.mscale_all_dim) ** 2

    def stretch(self, frequencies: Tensor, theta: float) -> Tensor:
        """Return `frequencies`, `[dim / 2]`, changed so that they suit the longer context."""
        dim = 2 * len(frequencies)
        first = max(math.floor(self._pair_index(self.beta_fast, dim, theta)), 0)
        last = min(math.ceil(self._pair_index(self.beta_slow, dim, theta)), dim - 1)
        width = last - first or 0.001  # as in DeepSeek's code: a ramp of no width is a step
        stretched = (
            (torch.arange(len(frequencies), dtype=torch.float32, device=frequencies.device) - first) / width
        ).clamp(0, 1)
        return frequencies / self.factor * stretched + frequencies * (1 - stretched)

    def _pair_index(self, times: float, dim: int, theta: float) -> float:
        """Return the number of the pair, a fraction, whose angle makes `times` full turns over the original length."""
        return dim * math.log(self.original_max_position_embeddings / (times * 2 * math.pi)) / (2 * math.log(theta))

    def _mscale(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


class RotaryTable:
    """cos and sin of every position: `[max_positions, dim / 2]` each, FP32."""

    def __init__(self, dim: int, max_positions: int, theta: float, yarn: Yarn | None, device: torch.device) -> None:
        frequencies = theta ** -(torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim)
        if yarn is not None:
            frequencies = yarn.stretch(frequencies, theta)
        angles = torch.arange(max_positions, dtype=torch.float32, device=device)[:, None] * frequencies
        amplitude = 1.0 if yarn is None else yarn.amplitude
        self._cos, self._sin = angles.cos() * amplitude, angles.sin() * amplitude

    def lookup(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin, `[T, dim / 2]` each."""
        return self._cos[positions_T], self._sin[positions_T]


def read_rope(document: dict[str, Any], path: Path) -> tuple[float, Yarn | None]:
    """Return theta and YaRN's parameters from a config; None in place of the parameters without YaRN.

    Both are published as `rope_theta` and `rope_scaling`, and by newer tools as `rope_parameters`. Raises
    CheckpointError for any other kind of positions.
    """
    names = [name for name in ("rope_scaling", "rope_parameters") if document.get(name) is not None]
    if len(names) > 1:
        raise CheckpointError(f"{path} has both rope_scaling and rope_parameters: which of them counts?")
    name = names[0] if names else "rope_scaling"
    parameters = document.get(name) or {}
    if not isinstance(parameters, dict):
        raise CheckpointError(f"{path}: {name} is {parameters!r}, an object is needed")
    theta = parameters.get("rope_theta") or document.get("rope_theta")
    return _positive(theta, "rope_theta", path), _yarn(parameters, name, path)


def _yarn(parameters: dict[str, Any], name: str, path: Path) -> Yarn | None:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "yarn"):
        raise CheckpointError(f"{path}: {name} is of type {kind!r}, this runtime computes only 'default' and 'yarn'")
    fields = YARN_REQUIRED + YARN_OPTIONAL if kind == "yarn" else ()
    unknown = {key for key, value in parameters.items() if value is not None} - {*fields, *OTHER_KEYS}
    if unknown:
        raise CheckpointError(f"{path}: {name} has {sorted(unknown)}, which this runtime does not compute")
    if kind == "default":
        return None
    given = [*YARN_REQUIRED, *(key for key in YARN_OPTIONAL if parameters.get(key))]  # 0 counts as absent
    if ("mscale" in given) != ("mscale_all_dim" in given):
        raise CheckpointError(f"{path}: {name} needs both mscale and mscale_all_dim, or neither")
    return Yarn(**{key: _positive(parameters.get(key), f"{name}.{key}", path) for key in given})


def _positive(value: Any, name: str, path: Path) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise CheckpointError(f"{path}: {name} is {value!r}, a positive number is needed")
    return value

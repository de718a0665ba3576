"""The parts from which tests build a model on this machine's CPU."""

import torch

from runtime.kernels.backend import choose_backend
from runtime.kernels.ops import Ops
from runtime.kv.cache import LatentCache

CPU = torch.device("cpu")
TORCH_OPS = Ops(CPU)


def backend(dtype=torch.float32, deterministic=False):
    """Return the backend that an engine on this CPU would choose now."""
    return choose_backend(CPU, dtype, deterministic)


def new_cache(config, num_tokens, dtype=torch.float32, **options):
    """Return an empty cache for a model of `config`, with a cache's `options`."""
    return LatentCache(config.num_hidden_layers, config.latent_dim, num_tokens, dtype, CPU, **options)

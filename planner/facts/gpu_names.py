"""Other names of GPUs: a node label's `NVIDIA-H100-80GB-HBM3` is `h100` in the catalog.

A name means an entry of the catalog if chip, board and memory are the same. A chip may be sold in several forms: the
H100 NVL and the H20-3e have figures that differ from the catalog's H100 and H20.
"""

import re
from collections.abc import Sequence

from planner.facts.catalog import GPUS
from planner.problems.fix import Fix, closest_choice, did_you_mean

# Chips that the catalog lacks, so that none of them is confused with a similar name.
UNPLANNED = (
    *("a10", "a30", "a40", "a100", "a800", "b100", "b300", "gb300", "gh200", "h20e", "l2", "l4", "l20", "l40", "l40s"),
    *("t4", "v100", "mi250", "mi250x", "mi300a", "mi308x", "mi325x", "mi350x", "mi355x"),
)
UNPLANNED_SERIES = ("rtx", "gaudi", "ascend")  # a chip's name is one of these with a number: gaudi3

# Words of a name that do not change the GPU: the maker, and the board and memory that the catalog's entry has too.
SAME_CHIP = frozenset(
    (*("nvidia", "amd", "instinct", "tensor", "core", "gpu"), *("hgx", "dgx", "sxm", "sxm5", "oam", "hbm3", "hbm3e"))
)
WORD = re.compile(r"[a-z0-9.]+")
COUNTED = re.compile(r"[0-9]+x(?=[a-z])|(?<=[0-9])x[0-9]+$")  # 8xh100, h100x8


def same_gpu(written: str) -> str | None:
    """Return the catalog's name for the GPU that `written` names in another way; None for GPUs that it lacks."""
    words = [each for each in _words(written) if each not in SAME_CHIP]
    for name, gpu in GPUS.items():
        said_too = {f"{gpu.nominal_gb}gb", f"{gpu.nominal_gb}g", f"nvl{gpu.nvlink_domain}"} if gpu.nominal_gb else set()
        if "".join(each for each in words if each not in said_too) == name:
            return name
    return None


def suggest_gpu(written: str, known: Sequence[str]) -> Fix:
    """Suggest the name in `known` that means the same GPU as `written`, or else all of `known`."""
    own = [each for each in known if each not in GPUS]
    meant = same_gpu(written) or closest_choice(written, own)
    return did_you_mean(meant, [meant]) if meant in known else Fix(f"write {' or '.join(known)}", ())


def unplanned_gpu(written: str) -> str | None:
    """Return the GPU that `written` names if the catalog lacks it; None for a GPU of the catalog and for no GPU.

    A chip of the catalog with another board or memory is another GPU, and its whole name is returned.
    """
    words = _words(written)
    listed = [each for each in words if each in UNPLANNED or each.startswith(UNPLANNED_SERIES)]
    if listed:
        return listed[0]
    is_of_catalog = any(each in GPUS for each in words)
    return written.casefold() if is_of_catalog and same_gpu(written) is None else None


def _words(written: str) -> list[str]:
    return WORD.findall(COUNTED.sub("", written.casefold()))

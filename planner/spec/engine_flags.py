"""What engines' flags of a phase say together, or as numbers of a whole server.

Sources: github.com/vllm-project/vllm vllm/engine/arg_utils.py; github.com/sgl-project/sglang
python/sglang/srt/server_args.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.facts.terms import Overlap, Phase
from planner.spec.meant import truth
from planner.spec.other_names import OTHER_NAMES, OVERLAP_OF_PHASE, plain_name
from planner.spec.phase import MAX_ATTENTION_TP

__all__ = ["of_the_server", "overlap_said_by_flag", "said_by_flag"]

TENSOR_FLAGS = ("tensor_parallel_size", "tp_size", "tp")
DATA_FLAGS = ("data_parallel_size", "dp_size", "dp")
OVERLAP_FLAGS = ("enable_two_batch_overlap", "two_batch_overlap", "tbo", "enable_dbo")

# SGLang divides these by dp_size where attention is data-parallel, as it always is here. Sources:
# github.com/sgl-project/sglang 001ccef0 python/sglang/srt/model_executor/model_runner_kv_cache_mixin.py
# (max_running_requests), 469c63e5 python/sglang/srt/server_args.py (chunked_prefill_size).
OF_THE_SERVER = ("max_running_requests", "chunked_prefill_size")


def said_by_flag(key: str, phase: Mapping[str, Any]) -> tuple[Mapping[str, int], str] | None:
    """Return what a flag of tensor or data parallelism says among the keys of its phase, and why.

    SGLang's `tp-size` counts all GPUs where attention is data-parallel inside it, so that attention has
    `tp-size` / `dp-size` of them. vLLM's `data-parallel-size` counts groups, each of `tensor-parallel-size` GPUs. None
    where the flag means what it means alone; nothing is said where our defaults say it already.
    """
    flags = {plain_name(each): value for each, value in phase.items()}
    tensor, data = _count(flags, TENSOR_FLAGS), _count(flags, DATA_FLAGS)
    has_ep_size = any(each == "ep_size" or OTHER_NAMES.get(each) == "ep_size" for each in flags)
    is_inside = bool(flags.get("enable_dp_attention")) or ("data_parallel_size" not in flags and data is not None)
    if plain_name(key) in TENSOR_FLAGS and tensor is not None and is_inside and tensor % (data or tensor) == 0:
        attention_tp = tensor // (data or tensor)
        said = {} if has_ep_size else {"ep_size": tensor}
        said |= {"attention_tp": attention_tp} if attention_tp > 1 and "attention_tp" not in flags else {}
        if data == 1:
            return said, f"{key} counts the GPUs of a unit, and with dp_size 1 all of them share attention"
        return said, f"attention_tp is {key} / dp_size, which is {attention_tp} with data-parallel attention"
    if plain_name(key) in TENSOR_FLAGS and tensor is not None and tensor > MAX_ATTENTION_TP:
        reason = f"here ep_size is the number of GPUs of a unit, and {tensor} GPUs cannot share attention"
        return {} if has_ep_size else {"ep_size": tensor}, reason
    if plain_name(key) in DATA_FLAGS and data is not None and not has_ep_size and not (is_inside and tensor):
        return {"ep_size": data * (tensor or 1)}, "experts are spread over all GPUs of a unit, which ep_size counts"
    return None


def overlap_said_by_flag(phase: Phase, key: str, value: Any) -> Overlap | None:
    """Return the overlap that an engine's flag turns on in `phase`; None for other keys, or where it is off."""
    plain = plain_name(key)
    if plain not in OVERLAP_FLAGS or not (value is True or truth(value)):
        return None
    return "dual_batch" if plain == "enable_dbo" else OVERLAP_OF_PHASE[phase]


def of_the_server(key: str, value: Any, phase: Mapping[str, Any]) -> tuple[int | None, str] | None:
    """Return what a rank has of a limit of SGLang's that counts for a whole server, and why; None for other keys.

    None as a number where the phase does not say how many ranks, or groups of them, share it. One that is too small to
    share can only be a rank's own.
    """
    if plain_name(key) not in OF_THE_SERVER:
        return None
    flags = {plain_name(each): number for each, number in phase.items()}
    ep_size, attention_tp = phase.get("ep_size"), phase.get("attention_tp", 1)
    if "ep_size" not in flags and (count := _count(flags, DATA_FLAGS)):
        ep_size, attention_tp = count, 1  # so many groups, whatever the GPUs of each
    of_ranks = "tidemill's for each of its dp_size ranks or attention groups"
    why = f"SGLang's {plain_name(key)} is for the whole server, {of_ranks}"
    if not all(type(each) is int and each > 0 for each in (value, ep_size, attention_tp)):
        return None, why
    dp_size = max(1, ep_size // attention_tp)
    return (value // dp_size, why) if value >= dp_size else None


def _count(flags: Mapping[str, Any], names: Sequence[str]) -> int | None:
    return next((flags[name] for name in names if type(flags.get(name)) is int and flags[name] > 0), None)

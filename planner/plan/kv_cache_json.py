"""The cache of prompts' KV in the plan JSON; docs/plan-json.md says what its keys mean."""

from typing import Any

from planner.estimate.kv_cache import KvCache

__all__ = ["kv_cache_json"]

DIGITS = 6


def kv_cache_json(cache: KvCache) -> dict[str, Any]:
    """Return the section."""
    return {
        "hit_rate": cache.hit_rate,
        "mean_read_bytes_per_s": _rounded(cache.mean_reads),
        "read_bytes_per_s": _rounded(cache.reads),
        "read_bytes_per_s_per_node": _rounded(cache.reads / cache.nodes),
        "write_bytes_per_s": _rounded(cache.writes),
        "write_bytes_per_s_per_node": _rounded(cache.writes / cache.nodes),
        "day_bytes": _rounded(cache.day_bytes),
        "nodes": cache.nodes,
        "saved_nodes": _rounded(cache.saved_nodes),
        "sizes": [
            {
                "keep_s": each.reuse.keep_s,
                "hit_rate": each.reuse.hit_rate,
                "bytes": _rounded(each.num_bytes),
                "bytes_per_node": _rounded(each.num_bytes / cache.nodes),
                "saved_nodes": _rounded(each.saved_nodes),
            }
            for each in cache.sizes
        ],
    }


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")

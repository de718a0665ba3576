"""The cache of prompts' KV as text: what it reads and writes, and how large it is for how many hits."""

from planner.plan.columns import filled, table
from planner.plan.plan import Plan

__all__ = ["kv_cache_text"]

GIGA, TERA = 1e9, 1e12


def kv_cache_text(plan: Plan) -> str:
    """Return the section; empty where no prompt hits a cache."""
    cache = plan.kv_cache
    if cache is None:
        return ""
    rows = [("KV cache", "TB", "TB a node", "hits", "nodes saved")]
    rows += [
        (
            f"kept {each.reuse.keep_s / 60:g} min",
            f"{each.num_bytes / TERA:,.1f}",
            f"{each.num_bytes / cache.nodes / TERA:,.2f}",
            f"{each.reuse.hit_rate:.1%}",
            f"{each.saved_nodes:,.1f}",
        )
        for each in cache.sizes
    ]
    note = (
        "A block is kept so long after its last use; hits are those of an hour of Mooncake's conversations, capacity is"
        f" that of this traffic in its busiest hour. The {cache.hit_rate:.1%} of the spec save {cache.saved_nodes:,.1f}"
        f" nodes on average and read {cache.mean_reads / GIGA:,.0f} GB/s, {cache.reads / GIGA:,.0f} in the busiest hour"
        f" or {cache.reads / cache.nodes / GIGA:,.2f} a node of {cache.nodes}. All that is computed then writes"
        f" {cache.writes / GIGA:,.0f} GB/s, {cache.writes / cache.nodes / GIGA:,.2f} a node, and"
        f" {cache.day_bytes / TERA:,.0f} TB a day."
    )
    return "\n".join([table(rows), *filled(note)])

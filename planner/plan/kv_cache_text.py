"""The cache of prompts' KV as text: what it reads and writes, and how large it is for how many hits."""

from planner.plan.columns import filled, table
from planner.plan.estimated import Estimated

__all__ = ["kv_cache_text"]

GIGA, TERA = 1e9, 1e12


def kv_cache_text(plan: Estimated) -> str:
    """Return the section; empty where no prompt hits a cache."""
    cache = plan.kv_cache
    if cache is None:
        return ""
    rows = [("KV cache", "TB", "TB per node", "hits", "nodes saved")]
    rows += [
        (
            f"kept {each.keep_s / 60:g} min",
            _figure(each.bytes / TERA),
            _figure(each.bytes_per_node / TERA),
            f"{each.hit_rate:.1%}",
            f"{each.saved_nodes:,.1f}",
        )
        for each in cache.sizes
    ]
    reads = "For all of the traffic, reading them takes"
    if round(cache.mean_read_bytes_per_s / GIGA) != round(cache.read_bytes_per_s / GIGA):
        reads += f" {_figure(cache.mean_read_bytes_per_s / GIGA)} GB/s on average and"
    notes = (
        "Each row is a cache that keeps a block for so long after its last use. Its size is for this traffic's busiest "
        "hour; its hits are those that an hour of Mooncake's published conversations has.",
        f"The spec's own hits, {cache.hit_rate:.1%} of prompt tokens, save {cache.saved_nodes:,.1f} nodes on average. "
        f"{reads} {_per_node(cache.read_bytes_per_s, cache.nodes)} in the busiest hour. Writing what is computed takes "
        f"{_per_node(cache.write_bytes_per_s, cache.nodes)} in that hour, and "
        f"{_figure(cache.day_bytes / TERA)} TB a day.",
    )
    return "\n".join([table(rows), *(line for note in notes for line in filled(note))])


def _per_node(rate: float, nodes: int) -> str:
    each = f"{_figure(rate / nodes / GIGA)} on each of {nodes} nodes" if nodes > 1 else "on one node"
    return f"{_figure(rate / GIGA)} GB/s ({each})"


def _figure(value: float) -> str:
    """Return two digits at least, however small the deployment is."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"

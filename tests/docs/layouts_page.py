"""`docs/published-layouts.md`: published layouts, and what the planner says of each."""

from tests.planner.published_layouts.layouts import LAYOUTS, data_of, verdict_of

__all__ = ["layouts_page"]

HEAD = """# Published layouts

<!-- Written by `python -m tests.docs`: change what it is made from. -->

What `tidemill validate` says of layouts that were published, or that people would write. The specs are in
[layouts.yaml](../tests/planner/published_layouts/layouts.yaml), and a test applies every fix that is printed here. GB
are of 1e9 bytes. KV is what fits beside weights, the largest step and buffers on one GPU.

| layout | GPUs | says | source |
|---|---|---|---|"""


def layouts_page() -> str:
    """One row a layout."""
    return "\n".join([HEAD, *map(_row, LAYOUTS)]) + "\n"


def _row(layout):
    cells = (layout["what"], _gpus(layout["spec"]["cluster"]), verdict_of(data_of(layout)).in_words(), layout["source"])
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _gpus(cluster):
    nodes = cluster["nodes"] if isinstance(cluster["nodes"], int) else len(cluster["nodes"])
    return f"{nodes * cluster['gpus_per_node']:,} {cluster['gpu']}"

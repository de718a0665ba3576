"""`docs/published-layouts.md`: published layouts, and what the planner says of each."""

from tests.planner.engines.deployments import DEPLOYMENTS, refusals_of
from tests.planner.published_layouts.layouts import LAYOUTS, data_of, verdict_of

__all__ = ["layouts_page"]

HEAD = """# Published layouts

<!-- Written by `python -m tests.docs`: change what it is made from. -->

What `tidemill validate` says of layouts that were published, or that people would write. The specs are in
[layouts.yaml](../tests/planner/published_layouts/layouts.yaml), and a test applies every fix that is printed here. GB
are of 1e9 bytes. KV is what fits beside weights, the largest step and buffers on one GPU.

| layout | GPUs | says | source |
|---|---|---|---|"""
ON_ENGINES = """
## Today's models on the engine that they were published for

The same for [deployments.yaml](../tests/planner/data/deployments.yaml). Validate calls what the engine cannot run `left
to render`, since it is refused there: the spec itself is valid. A test plans and renders each that is not
refused, and looks for the sizes that were published in what the engine is told.

| deployment | GPUs | engine | says | source |
|---|---|---|---|---|"""


def layouts_page() -> str:
    """One row a layout, and one a deployment."""
    return "\n".join([HEAD, *map(_row, LAYOUTS), ON_ENGINES, *map(_row_of_engine, DEPLOYMENTS)]) + "\n"


def _row(layout):
    return _cells(
        layout["what"], _gpus(layout["spec"]["cluster"]), verdict_of(data_of(layout)).in_words(), layout["source"]
    )


def _row_of_engine(deployment):
    spec, refused = deployment["spec"], refusals_of(deployment)
    says = (
        " / ".join(f"{each.message} [{each.rule[:4]}]" for each in refused)
        or verdict_of(data_of(deployment)).in_words()
    )
    return _cells(deployment["what"], _gpus(spec["cluster"]), spec["engine"], says, deployment["source"])


def _cells(*cells):
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _gpus(cluster):
    nodes = cluster["nodes"] if isinstance(cluster["nodes"], int) else len(cluster["nodes"])
    return f"{nodes * cluster['gpus_per_node']:,} {cluster['gpu']}"

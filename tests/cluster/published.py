"""The published system's spec on nodes that are named, as a team with such a cluster would write it."""

from pathlib import Path

import yaml

from tests.cluster.fake_nodes import h800_nodes

__all__ = ["NAME", "NAMESPACE", "write_published_spec"]

SPEC = Path(__file__).parents[2] / "stacks" / "specs" / "deepseek-h800.yaml"
NAME, NAMESPACE = "deepseek-r1", "tidemill"


def write_published_spec(folder: Path) -> Path:
    """The spec that ships, with the inventory of the fake nodes instead of their number."""
    document = yaml.safe_load(SPEC.read_text())
    del document["cluster"]["rack_size"]  # the list says racks
    document["cluster"]["nodes"] = [each.inventory for each in h800_nodes()]
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(document))
    return path

"""A launch file in as many parts as ConfigMaps are needed to hold it. Nearly every one has a single part, itself.

The API server takes at most 1 MiB of data in one ConfigMap: 2,304 slots in 58 layers are 468 KiB. A larger file is cut
between lines. Pods mount all parts into one folder, and the runtime reads them one after the other. Nothing is
compressed: what a zlib writes depends on its version, and the same plan gives the same bytes on any machine.

Source of the limit: kubernetes 1.36, pkg/apis/core/validation/validation.go, ValidateConfigMap: the values of `data`
and `binaryData` together may have MaxSecretSize bytes (pkg/apis/core/types.go). A request may have more: 3 MiB by the
API server, 1.5 MiB by etcd.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from planner.facts import names

__all__ = ["MAX_PART_BYTES", "LaunchPart", "launch_parts"]

MAX_PART_BYTES = 1_000_000  # of 1,048,576


@dataclass(frozen=True)
class LaunchPart:
    """What one ConfigMap holds of a launch file: its `text`, under the name `file`."""

    owner: str  # of the ConfigMap, as manifests' files are named
    config: str  # the ConfigMap's name
    file: str
    text: str


def launch_parts(owner: str, file: str, launch_digest: str, text: str) -> tuple[LaunchPart, ...]:
    """The parts of the launch file `file` of `owner`, in order; several are called `FILE.0`, `FILE.1` and so on."""
    pieces = list(_pieces(text))
    if len(pieces) == 1:
        return (LaunchPart(owner, names.launch_config(owner, launch_digest), file, text),)
    return tuple(
        LaunchPart(
            owner=f"{owner}-part-{number}" if number else owner,
            config=names.launch_config(owner, launch_digest, number),
            file=f"{file}.{number}",
            text=piece,
        )
        for number, piece in enumerate(pieces)
    )


def _pieces(text: str) -> Iterator[str]:
    """`text` in pieces of whole lines, each as long as fits."""
    assert text.isascii()  # so characters are bytes
    lines: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        assert len(line) <= MAX_PART_BYTES  # a map has a line a layer
        if size + len(line) > MAX_PART_BYTES:
            yield "".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    yield "".join(lines)

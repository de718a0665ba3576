"""List the files of a folder that anybody may have filled, however deep it nests and whatever its links lead to."""

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["list_files"]

GIT = ".git"  # Git's own folder; some file systems read `.GIT` as that


def list_files(folder: Path) -> Iterator[Path]:
    """Yield each file and each link below `folder`, and each folder that cannot be listed. Git's own are left out.

    No link is followed, and a link to nowhere is yielded like any other.
    """
    left = [folder]
    while left:
        above = left.pop()
        try:
            with os.scandir(above) as found:
                entries = [each for each in found if each.name.casefold() != GIT]
        except OSError:
            yield above
            continue
        for each in entries:
            if each.is_dir(follow_symlinks=False):
                left.append(above / each.name)
            else:
                yield above / each.name

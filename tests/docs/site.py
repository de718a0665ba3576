"""Build the site of the documentation: `python -m tests.docs.site [FOLDER]`. It needs the extra `docs`.

Pages refer to each other, and to READMEs and the changelog, by paths in the checkout. So every Markdown file and what
lies in `docs/` is copied into FOLDER/pages with its path, and all links hold. A broken link or anchor fails the build.

The navigation is what `docs/README.md` and `docs/design/README.md` list, under their headings, so nothing is listed
twice.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from posixpath import join, normpath

__all__ = ["build_site", "navigation"]

ROOT = Path(__file__).parents[2]
DEFAULT = ROOT / "build" / "site"
INDEX, DESIGN = "docs/README.md", "docs/design/README.md"
HEADING = re.compile(r"^## (.*)$", re.M)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+\.md)\)")


def build_site(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site into `folder`/html, and return the finished process. Warnings are errors.

    Raises ValueError for a page that is a link, since the site would publish whatever it leads to on this machine.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for path in _files():
        if (ROOT / path).is_symlink():
            raise ValueError(f"{path} must not be a link")
        (folder / "pages" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, folder / "pages" / path)
    head, mark, tail = (ROOT / "zensical.toml").read_text().partition("[project]\n")
    config = folder / "zensical.toml"
    config.write_text(f"{head}{mark}nav = {_toml(navigation())}\n{tail}")
    call = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(config)]
    return subprocess.run(call, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder)


def navigation():
    """Return the pages in order: (title, path) or (title, pages) each."""
    return [("Tidemill", "README.md"), ("Documentation", INDEX), *_sections(INDEX), ("Changes", "CHANGELOG.md")]


def _files():
    listed = subprocess.run(["git", "ls-files", "-z", "*.md", "docs"], cwd=ROOT, check=True, capture_output=True)
    return listed.stdout.decode().rstrip("\0").split("\0")


def _sections(index):
    """Yield (heading, pages) for each heading of the page `index` with links below it; those are its pages."""
    _, *parts = HEADING.split((ROOT / index).read_text())
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        found = {normpath(join(index.rpartition("/")[0], path)): title for title, path in LINK.findall(text)}
        pages = [(title, _pages_below(path)) for path, title in found.items()]
        if pages:
            yield heading, pages


def _pages_below(path):
    """Return a page's path; of the index of design pages, that index and all pages that it lists."""
    if path != DESIGN:
        return path
    return [("Design", DESIGN), *next(pages for heading, pages in _sections(DESIGN) if heading == "All pages")]


def _toml(pages):
    written = (
        f"{{{json.dumps(title)} = {json.dumps(each) if isinstance(each, str) else _toml(each)}}}"
        for title, each in pages
    )
    return f"[{', '.join(written)}]"


if __name__ == "__main__":
    done = build_site(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT)
    print(done.stdout.partition("Traceback")[0], end="")  # Zensical 0.0.73 ends a strict build with one
    sys.exit(done.returncode)

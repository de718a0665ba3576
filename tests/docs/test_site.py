"""The site of the documentation."""

import os
import subprocess
from importlib.util import find_spec

import pytest

from tests.docs import site
from tests.docs.rooms_table import ROOT
from tests.docs.site import build_site, navigation


def _paths(pages):
    for _, each in pages:
        yield from [each] if isinstance(each, str) else _paths(each)


def test_the_navigation_has_every_page_of_docs_once():
    """It is made from the two pages that list all others."""
    found = [path for path in _paths(navigation()) if path.startswith("docs/")]

    assert sorted(found) == sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))


def test_a_link_is_not_published(tmp_path, monkeypatch):
    """Whoever proposes a page could have the build publish a file of the machine that builds it."""
    (tmp_path / "README.md").symlink_to("/etc/hostname")
    for words in (["init", "-q"], ["add", "README.md"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(site, "ROOT", tmp_path)

    with pytest.raises(ValueError, match=r"README\.md must not be a link"):
        build_site(tmp_path / "site")


@pytest.mark.slow
def test_the_site_builds_without_a_broken_link(tmp_path):
    """Links and anchors of all pages lead somewhere, by the site's own check, and search has an index."""
    if find_spec("zensical") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("the site cannot be built without zensical")
    done = build_site(tmp_path)

    assert (done.returncode, "No issues found" in done.stdout) == (0, True), done.stdout
    assert (tmp_path / "html" / "search.json").stat().st_size > 100_000
    assert "fonts.googleapis" not in (tmp_path / "html" / "index.html").read_text()

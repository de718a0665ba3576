"""Write the files by which GitHub and GitLab check changes of one spec: jobs without a cluster and without torch.

The files belong to whoever asked for them, and are edited like any other of the repository. So none is overwritten.
"""

import re
from collections.abc import Collection, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

import jinja2

from planner.problems.errors import CallError, OutputError
from planner.problems.finding import Finding
from planner.problems.output import write_result
from stacks.gitops.comment import MARK, MAX_BYTES

__all__ = ["Forge", "require_plain", "workflow_files", "write_workflows"]

Forge = Literal["github", "gitlab"]
FILES: dict[Forge, dict[str, str]] = {  # path -> template
    "github": {
        ".github/workflows/tidemill-check.yml": "github-check.yml.j2",
        ".github/workflows/tidemill-comment.yml": "github-comment.yml.j2",
    },
    "gitlab": {".gitlab/tidemill.yml": "gitlab-ci.yml.j2"},
}
CONDITIONS = "outage,stale"  # what nobody wants unasked; the file is where others are written
PLAIN = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)*")  # neither YAML nor a shell reads more into it


def require_plain(name: str, path: Path) -> None:
    """Raise CallError for a path that cannot stand in a script as it is, or that leaves the checkout."""
    if not PLAIN.fullmatch(str(path)) or ".." in path.parts:
        rule, reason = (
            "R606 must be a path inside the checkout, of letters, digits, _ . - and /",
            "a job's script has it",
        )
        fix = "call tidemill at the root of the repository, for example with deploy/spec.yaml"
        raise CallError([Finding(name, str(path), rule, reason, fix).at("tidemill gitops init")])


def workflow_files(
    spec: Path, folder: Path, forges: Collection[Forge], overlays: Sequence[Path] = ()
) -> dict[str, str]:
    """Return path -> text of each file, for a spec under its overlays and the folder that is rendered from it."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("templates", "gitops"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 (YAML, not HTML; every value is a plain word)
        keep_trailing_newline=True,
        variable_start_string="<<",  # both forges read braces themselves
        variable_end_string=">>",
    )
    values = {
        "spec": " -f ".join(map(str, [spec, *overlays])),
        "folder": folder,
        "version": metadata.version("tidemill"),
        "conditions": CONDITIONS,
        "mark": MARK,
        "max_bytes": MAX_BYTES,
        "too_many_bytes": MAX_BYTES + 1,
    }
    return {
        path: environment.get_template(template).render(values)
        for forge in forges
        for path, template in FILES[forge].items()
    }


def write_workflows(root: Path, files: dict[str, str]) -> None:
    """Write the files below `root`. Raises CallError where another file is in the way, before any is written."""
    for path, text in files.items():
        if (root / path).exists() and _text_in(root / path) != text:
            rule, reason = "R607 must not be there yet", "somebody may have edited it, and the edit would be lost"
            fix = "remove it, and call tidemill gitops init again"
            raise CallError([Finding("", None, rule, reason, fix).at(path)])
    for path, text in files.items():
        try:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            finding = Finding(
                "", None, "S903 must be a writable folder", error.strerror or str(error), "choose another"
            )
            raise OutputError([finding.at(str(Path(path).parent))]) from None
        write_result(root / path, text)


def _text_in(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None

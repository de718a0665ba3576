"""Write the files by which forges check changes of a spec, and by which Argo CD or Flux applies them.

    one environment     SPEC under its overlays, rendered into FOLDER
    several             for each NAME: SPEC under its overlays, NAME.release.yaml and NAME.yaml, into FOLDER/NAME

A release file has what environments run and nothing that is one environment's own. So promoting is copying that file
to the next environment, and a job proposes the copy.

The jobs need neither a cluster nor torch. The files belong to whoever asked for them, and are edited like any other of
the repository. So none is overwritten.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Literal

import jinja2

from planner.command.printed import write_result
from planner.facts.engines import OURS
from planner.problems.errors import CallError, OutputError
from planner.problems.finding import Finding
from planner.spec.kubernetes import KubernetesSpec
from planner.spec.resolved import ResolvedSpec
from stacks.controller.cli import DEFINITION
from stacks.gitops.argument_errors import INIT, argument_error, link_error, no_loads_file_error
from stacks.gitops.comment import MAX_BYTES, MAX_COMMENT
from stacks.gitops.worth import PAYBACK_HOURS

__all__ = [
    "ENGINES",
    "FORGES",
    "Engine",
    "Environment",
    "Forge",
    "engine_files",
    "make_environments",
    "overlay_files",
    "overlay_namespace",
    "rebalancing_files",
    "recommend_controller",
    "require_loads",
    "require_repository",
    "require_safe_path",
    "workflow_files",
    "write_files",
]

Forge = Literal["github", "gitlab"]
Engine = Literal["argocd", "flux"]
FORGES: tuple[Forge, ...] = ("github", "gitlab")
ENGINES: tuple[Engine, ...] = ("argocd", "flux")
CHECKING: dict[Forge, dict[str, str]] = {  # path -> template
    "github": {
        ".github/workflows/tidemill-check.yml": "github-check.yml.j2",
        ".github/workflows/tidemill-comment.yml": "github-comment.yml.j2",
    },
    "gitlab": {".gitlab/tidemill.yml": "gitlab-ci.yml.j2"},
}
PROMOTING: dict[Forge, dict[str, str]] = {
    "github": {".github/workflows/tidemill-promote.yml": "github-promote.yml.j2"},
    "gitlab": {".gitlab/tidemill-promote.yml": "gitlab-promote.yml.j2"},
}
REBALANCING: dict[Forge, dict[str, str]] = {
    "github": {".github/workflows/tidemill-loads.yml": "github-loads.yml.j2"},
    "gitlab": {".gitlab/tidemill-loads.yml": "gitlab-loads.yml.j2"},
}
OBJECTS: dict[Engine, tuple[str, ...]] = {"argocd": ("argocd.yaml", "argocd-cm.yaml"), "flux": ("flux.yaml",)}
ARGOCD_KINDS = ("leaderworkerset.x-k8s.io_LeaderWorkerSet", "tidemill.dev_TidemillDeployment")  # health/*.lua
CONDITIONS = "outage,stale"  # what nobody wants unasked; the file is where others are written
PLAIN = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)*")  # neither YAML nor a shell reads more into it
NAME = re.compile(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?")  # of an object of Kubernetes; neither YAML's `on` nor a number
RESERVED = ("on", "off", "yes", "no", "true", "false", "null", "y", "n")  # no text to YAML 1.1
MAX_LABEL = 63  # Flux labels every object with its Kustomization's name (fluxcd/flux2, issue 2004)
REPOSITORY = re.compile(r"(https?|ssh)://[\w.@:/~-]+")
HAS_SECRET = re.compile(r"https?://[^/]*@|ssh://[^/]*:[^/]*@")  # for HTTP a token may stand in the user's place
LOADS_ADDRESS = re.compile(r"https?://[\w.:/~-]+")
OVERLAY = """\
# What environment {name} has otherwise than {spec}: these keys replace the spec's, and null takes one away.
# Environments that share a cluster need nodes of their own in cluster.nodes.
kubernetes:
  namespace: {namespace}
"""
RELEASE = """\
# What is promoted from environment to environment: this whole file is copied to the next one's. These keys replace the
# spec's, so other keys that are promoted, such as engine or model, belong here too.
kubernetes:
"""


@dataclass(frozen=True)
class Environment:
    """One environment: a cluster's spec with its overlays, and the folder that is rendered from them."""

    name: str
    spec: Path
    overlays: tuple[Path, ...]
    folder: Path
    release: Path | None = None  # the overlay that is copied from environment to environment
    own_overlay: Path | None = None  # the overlay that only this environment has

    @property
    def spec_words(self) -> str:
        """Return the spec and its overlays as arguments of a command: `SPEC -f OVERLAY`."""
        return " -f ".join(map(str, [self.spec, *self.overlays]))


def make_environments(spec: Path, folder: Path, overlays: Sequence[Path], names: str | None) -> tuple[Environment, ...]:
    """Return an environment for each of the comma-separated `names`. If that is None, return one, named after `folder`.

    Raises CallError for a name or path that is unsafe in a shell script, or a repeated name.
    """
    for option, path in (("SPEC", spec), ("FOLDER", folder), *(("-f", each) for each in overlays)):
        require_safe_path(option, path)
    if names is None:
        name = re.sub("[^a-z0-9]+", "-", folder.name.lower()).strip("-")
        return (Environment(_require_name(name if NAME.fullmatch(name) else "plan"), spec, tuple(overlays), folder),)
    found = [_require_name(each) for each in names.split(",")]
    if len(set(found)) < len(found):
        raise _wrong_name(names, "each has files of its own", "name each once")
    return tuple(
        Environment(each, spec, (*overlays, release, own), folder / each, release, own)
        for each in found
        for release, own in [(spec.with_name(f"{each}.release.yaml"), spec.with_name(f"{each}.yaml"))]
    )


def require_safe_path(name: str, path: Path) -> None:
    """Raises CallError for a path that needs quotes in a script, or that leaves the checkout."""
    if not PLAIN.fullmatch(str(path)) or ".." in path.parts:
        rule, reason = (
            "R606 must be a path inside the checkout, of letters, digits, _ . - and /",
            "a job's script has it",
        )
        fix = "call tidemill at the root of the repository, for example with deploy/spec.yaml"
        raise argument_error(INIT, name, str(path), rule, reason, fix)


def require_repository(address: str | None) -> str:
    """Return `address`, from which a cluster fetches the repository. Raises CallError if Flux cannot use it."""
    if address is None or not REPOSITORY.fullmatch(address) or HAS_SECRET.match(address):
        rule, reason = "R609 must be an https:// or ssh:// address without a password", "a cluster fetches from there"
        raise argument_error(
            INIT, "--repository", None, rule, reason, "for example ssh://git@git.example/team/deployments.git"
        )
    return address


def require_loads(address: str, specs: Sequence[ResolvedSpec]) -> str:
    """Return `address`, from which a job reads expert loads.

    Raises CallError if the address has a password or is no HTTP one, or if a spec names no file of loads.
    """
    if not LOADS_ADDRESS.fullmatch(address):
        rule, reason = "R621 must be an http:// or https:// address without a password", "a job's file has it"
        raise argument_error(INIT, "--loads-from", None, rule, reason, "for example http://prometheus.example:9090")
    for spec in specs:
        if spec.written.expert_load.file is None:
            raise no_loads_file_error(INIT, "--loads-from")
    return address


def recommend_controller(specs: Mapping[Environment, ResolvedSpec]) -> list[str]:
    """Return advice to add `kubernetes.controller`, a line for each spec whose units Git would restart all at once."""
    return [
        f"{each.spec_words} has no kubernetes.controller, so Git restarts all units at once, and a new image is an "
        "outage: write kubernetes: {controller: {}} before the first plan, and units change one by one"
        for each, spec in specs.items()
        if spec.written.kubernetes.controller is None
        and spec.written.kubernetes.unit_kind == "leaderworkerset"  # S507: no controller has StatefulSets
        and spec.written.engine_name == OURS
    ]


def overlay_files(root: Path, environments: Sequence[Environment], kubernetes: KubernetesSpec) -> dict[str, str]:
    """Return path -> text of each environment's overlay and release file, except files that exist already.

    `kubernetes` is the spec's section, which gives the namespace and the images.
    """
    texts = {}
    for each in environments:
        if each.release is not None and each.own_overlay is not None:
            texts[each.release] = _release_text(kubernetes)
            namespace = overlay_namespace(each, kubernetes.namespace)
            texts[each.own_overlay] = OVERLAY.format(name=each.name, spec=each.spec, namespace=namespace)
    return {str(path): text for path, text in texts.items() if not (root / path).exists()}


def _release_text(kubernetes: KubernetesSpec) -> str:
    """Return the initial text of a release overlay: the images that the spec names, as YAML."""
    texts = [f"  image: {json.dumps(kubernetes.image)}\n"]
    if kubernetes.tidemill_image is not None:
        texts.append(f"  tidemill_image: {json.dumps(kubernetes.tidemill_image)}\n")
    if kubernetes.gateway.image is not None:
        texts.append(f"  gateway:\n    image: {json.dumps(kubernetes.gateway.image)}\n")
    return "".join([RELEASE, *texts])


def overlay_namespace(environment: Environment, namespace: str) -> str:
    """Return the namespace of an environment's new overlay: `NAMESPACE-NAME`, the first part cut to 30 letters."""
    return f"{namespace[:30]}-{environment.name}"


def workflow_files(environments: Sequence[Environment], forges: Collection[Forge]) -> dict[str, str]:
    """Return path -> text of each forge's workflows that check changes and, for several environments, promote them."""
    pairs = list(pairwise(environments))
    values = {
        "environments": environments,
        "pairs": pairs,
        "conditions": CONDITIONS,
        "max_bytes": MAX_BYTES,
        "too_many_bytes": MAX_BYTES + 1,
        "max_comment": MAX_COMMENT,
    }
    return {
        path: _fill(template, values)
        for forge in forges
        for path, template in (CHECKING[forge] | (PROMOTING[forge] if pairs else {})).items()
    }


def rebalancing_files(
    environments: Sequence[Environment], forges: Collection[Forge], loads_from: str
) -> dict[str, str]:
    """Return path -> text of each forge's job that proposes new expert maps from the loads at `loads_from`."""
    values = {"environments": environments, "loads_from": loads_from, "payback_hours": f"{PAYBACK_HOURS:g}"}
    return {path: _fill(template, values) for forge in forges for path, template in REBALANCING[forge].items()}


def engine_files(
    environment: Environment, spec: ResolvedSpec, engines: Collection[Engine], repository: str, namespace: str = ""
) -> dict[str, str]:
    """Return path -> text of the objects that make Argo CD or Flux apply a folder. A user applies them once.

    `namespace` replaces the spec's, for an environment whose overlay does not exist yet.
    """
    folder = Path("clusters") / environment.name
    kubernetes = spec.written.kubernetes
    values = {
        "environment": environment,
        "name": _application_name(spec.written.name, environment.name),
        "namespace": namespace or kubernetes.namespace,
        "repository": repository,
        "kinds": folder / "kinds",
        "is_single": environment.own_overlay is None,
        "has_controller": kubernetes.controller is not None,
        "argocd_kinds": ARGOCD_KINDS,
    }
    files = {str(folder / name): _fill(f"{name}.j2", values) for each in engines for name in OBJECTS[each]}
    if kubernetes.controller is None:
        return files
    definition = {str(folder / "kinds" / "tidemilldeployment.yaml"): DEFINITION.read_text(encoding="utf-8")}
    return files | {str(folder / "kinds" / "kustomization.yaml"): _fill("kinds.yaml.j2", values)} | definition


def _application_name(plan: str, environment: str) -> str:
    """Return `PLAN-ENVIRONMENT`, an Argo CD or Flux object's name: a cluster may have several environments."""
    room = MAX_LABEL - len(f"-{environment}-kinds")
    return f"{plan[:room].rstrip('-')}-{environment}"


def write_files(root: Path, files: dict[str, str]) -> None:
    """Write the `files` (path -> text) that do not exist below `root`; files with the same text stay.

    Raises CallError before writing any, with every file that has another text, or for a file behind a link.
    """
    for path in files:
        _refuse_links(root, path)
    present = [path for path in files if (root / path).exists()]
    if others := [_differs(path) for path in present if _text_in(root / path) != files[path]]:
        raise CallError(others)
    for path in sorted(files.keys() - present):
        _make_folder(root, str(Path(path).parent))
        write_result(root / path, files[path])


def _differs(path: str) -> Finding:
    rule = "R607 must be missing, or say what init would write"
    reason = "somebody may have edited it, and the edit would be lost"
    fix = (
        "keep it, and name only files that are missing, for example with --flux; or remove it, call again, and compare "
        "with git diff. All environments of a repository go into one call, with --environments"
    )
    return Finding("", None, rule, reason, fix).at(path)


def _make_folder(root: Path, path: str) -> None:
    try:
        (root / path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        finding = Finding("", None, "S903 must be a writable folder", error.strerror or str(error), "choose another")
        raise OutputError([finding.at(path)]) from None


def _refuse_links(root: Path, path: str) -> None:
    for each in (Path(path), *Path(path).parents):
        if (root / each).is_symlink():
            raise link_error(str(each))


def _require_name(name: str) -> str:
    if not NAME.fullmatch(name) or name in RESERVED:
        raise _wrong_name(
            name, "files, artifacts and objects of Kubernetes are called after it", "for example dev,prod"
        )
    return name


def _wrong_name(names: str, reason: str, fix: str) -> CallError:
    rule = "R620 must be names of at most 32 small letters, digits and -, with commas between them"
    return argument_error(INIT, "--environments", names, rule, reason, fix)


def _fill(template: str, values: Mapping[str, object]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("templates", "gitops"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 (YAML, not HTML; every value is a plain word)
        keep_trailing_newline=True,
        trim_blocks=True,
        variable_start_string="<<",  # both forges read braces themselves
        variable_end_string=">>",
    )
    return environment.get_template(template).render(version=metadata.version("tidemill"), **values)


def _text_in(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None

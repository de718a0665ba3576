"""A spec file to a spec that can be planned, or to everything that is wrong with it.

    text -> yaml.py (data, places) -> fields.py (single fields) -> here (files, catalog) -> rules -> ResolvedSpec

All of it happens before the first pass, so that passes never meet a wrong spec, and a user meets all mistakes at once:
a field that is wrong silences only the rules that read it. This is also the only place where the planner reads files.

It does not plan: whether the cluster is large enough is not asked here.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from planner.facts.catalog import GPUS, Gpu, unplanned_gpu
from planner.facts.checkpoint_manifest import MANIFEST, read_weights_digest
from planner.facts.loads import Loads, read_loads
from planner.facts.model import Model
from planner.facts.terms import PHASES, Phase
from planner.families import MODELS, read_model_config
from planner.problems.errors import Problem, SpecError, Violation
from planner.problems.fix import HERE, Change, Fix, applied, did_you_mean, nearest
from planner.spec.fields import check_fields
from planner.spec.layout_rules import broken_rules
from planner.spec.model_names import Copy, copy_of, is_hub_name, is_path
from planner.spec.schema import ClusterSpec, GpuSpec, PhaseSpec, Spec
from planner.spec.yaml import Document, read_document

__all__ = ["ResolvedSpec", "check_document", "check_spec", "mistakes_in", "with_values"]

BITS_PER_BYTE = 8
INT4_PRECISIONS = ("w4a8", "w4a16")
MAX_STEPS = 8  # from a field's range to a number that its rules take: each rule about it moves it once or twice


@dataclass(frozen=True)
class ResolvedSpec:
    """A spec without mistakes, together with what the files and catalog entries that it names say."""

    written: Spec
    model: Model
    config_digest: str | None  # of the checkpoint's config.json; None where neither a file nor the spec says it
    weights_digest: str | None  # of the manifest beside it, likewise
    other_quantization: str | None  # what the config.json's quantization_config says that no precision does
    gpu: Gpu
    measured_loads: Loads | None  # of expert_load.file
    inputs: Mapping[str, str]  # sha256 of every file that the spec names, by the name that it has there
    document: Document

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return the phases that the spec has: prefill and decode, or mixed."""
        return self.written.phases

    def gpu_of(self, phase: Phase) -> Gpu:
        """Return what `phase` runs on."""
        name = self.written.gpu_name(phase)
        return self.gpu if name == self.cluster.gpu_name else GPUS[name]

    def named_gpus(self) -> Iterator[tuple[str, str, Gpu]]:
        """Yield where the spec names what its phases run on, the name there, and its figures."""
        if any(self.phase(phase).gpu is None for phase in self.phases):
            yield "cluster.gpu", self.cluster.gpu_name, self.gpu
        for phase in self.phases:
            if (name := self.phase(phase).gpu) is not None:
                yield f"{phase}.gpu", name, self.gpu_of(phase)

    @property
    def cluster(self) -> ClusterSpec:
        """Return the nodes as written."""
        return self.written.cluster

    def phase(self, phase: Phase) -> PhaseSpec:
        """Return what is written about `phase`."""
        return self.written.phase(phase)

    def trying(self, phase: Phase, numbers: Mapping[str, int]) -> "ResolvedSpec":
        """Return it with other numbers in `phase`, unchecked: for a look at its memory."""
        section = self.phase(phase).model_copy(update=dict(numbers))
        return replace(self, written=self.written.model_copy(update={phase: section}))

    def problem(self, violation: Violation) -> Problem:
        """`violation` with its line, for passes that find the spec infeasible."""
        return self.document.problem(violation)


def check_spec(path: Path) -> ResolvedSpec:
    """The spec in the file at `path`. Raises SpecError with every mistake in it."""
    return check_document(read_document(path))


def check_document(document: Document) -> ResolvedSpec:
    """The spec in `document`, whose files lie beside it. Raises SpecError with every mistake in it."""
    if "model_type" in document.data and not document.data.keys() & Spec.model_fields.keys() - {"name", "version"}:
        reason = "this is a checkpoint's config.json, from which a spec takes the model's shapes"
        fix = f"write a spec with model: {{config: {Path(document.file).name}}}"
        raise SpecError([document.problem(Violation("model_type", None, "S201 is not a key of the spec", reason, fix))])
    fields = check_fields(document.data)
    named = _Named(Path(document.file).parent, fields.values, document.data)
    values = fields.values | named.resolved | _given_keys(document.data, fields.misspelt) | _units(fields.values)
    in_range = (
        _as_the_checkpoint(_in_whole_nodes(_heeding_rules(violation, values), values), values)
        for violation in fields.violations
    )
    as_written = {f"{phase}.as_written": phase for phase in PHASES}
    violations = [*in_range, *named.violations, *broken_rules(values | as_written)]
    if violations:
        raise SpecError([document.problem(violation) for violation in violations])
    return ResolvedSpec(
        written=Spec.model_validate(document.data),
        model=named.resolved["model.shapes"],
        config_digest=named.resolved.get("model.digest") or values.get("model.config_digest"),
        weights_digest=named.resolved.get("model.digest_of_weights") or values.get("model.weights_digest"),
        other_quantization=named.resolved.get("model.other_quantization"),
        gpu=named.resolved["cluster.device"],
        measured_loads=named.resolved.get("expert_load.loads"),
        inputs=named.inputs,
        document=document,
    )


def mistakes_in(data: Mapping[str, Any]) -> list[Violation]:
    """Return what is wrong with the data of a spec, as far as that can be told without the files that it names."""
    fields = check_fields(data)
    values = fields.values | _given_keys(data, fields.misspelt) | _units(fields.values)
    return [*fields.violations, *broken_rules(values)]


def with_values(spec: ResolvedSpec, values: Change) -> ResolvedSpec:
    """`spec` as if its user had written `values` (dotted path -> value), checked anew. Raises SpecError."""
    return check_document(replace(spec.document, data=applied(spec.document.data, values)))


def _heeding_rules(violation: Violation, values: Mapping[str, Any]) -> Violation:
    """Return `violation` with a number for its fix that breaks no rule about the field either, where one is found.

    A rule that a change of another field mends does not move the number. If the number was written in another form, the
    fix holds what follows from it in fields that nobody wrote.
    """
    offered = _offered(violation)
    if offered is None:
        return violation
    path, number = violation.path, offered
    for _ in range(MAX_STEPS):
        broken = broken_rules({**values, path: number}, about=path)
        better = [
            each for each in map(_offered, (each for each in broken if not _elsewhere(each, path))) if each is not None
        ]
        if not better:
            break
        number = min((abs(each - number), each) for each in better)[1]
    follows = _what_follows(path, number, values) if violation.rule.startswith("S203") else {}
    if number == offered and not follows:
        return violation
    words = [
        str(violation.fix).replace(str(offered), str(number)),
        *(f"{key}: {each}" for key, each in follows.items()),
    ]
    return replace(violation, fix=Fix(" and ".join(words), ({HERE: number, **follows},)))


def _elsewhere(broken: Violation, path: str) -> list[Change]:
    """Return the changes that mend `broken` and leave what stands at `path` as it is."""
    return [each for each in broken.changes if path not in each]


def _what_follows(path: str, number: int, values: Mapping[str, Any]) -> Change:
    """Return what must stand in fields that nobody wrote if `number` stands at `path`."""
    follows: dict[str, Any] = {}
    for broken in broken_rules({**values, path: number}, reading=path):
        unwritten = (each for each in _elsewhere(broken, path) if all(_is_unwritten(key, values) for key in each))
        follows |= next(unwritten, {})
    return follows


def _is_unwritten(path: str, values: Mapping[str, Any]) -> bool:
    """Return whether `path` is of a section that is there, and nothing stands at it."""
    section, _, key = path.partition(".")
    return f"{section}.given" in values and key not in values[f"{section}.given"]


def _as_the_checkpoint(violation: Violation, values: Mapping[str, Any]) -> Violation:
    """`violation` with the precision of the published checkpoint, where that has INT4 experts and `int4` is written."""
    model = values.get("model.shapes")
    is_int4 = violation.rule.startswith("S211") and str(violation.value).casefold() == "int4"
    if not is_int4 or not isinstance(model, Model) or model.quantisation.precision not in INT4_PRECISIONS:
        return violation
    reason = f"the checkpoint has {model.quantisation.words}, which is {model.quantisation.precision} here"
    rule, fix = "S204 must be a precision that is known", nearest(model.quantisation.precision)
    return replace(violation, rule=rule, reason=reason, fix=fix)


def _in_whole_nodes(violation: Violation, values: Mapping[str, Any]) -> Violation:
    """`violation` with the nodes that a domain of GPUs is made of, where the domain was taken for one node."""
    gpu, nodes = values.get("cluster.device"), values.get("cluster.nodes")
    if violation.path != "cluster.gpus_per_node" or not isinstance(gpu, Gpu) or not isinstance(nodes, int):
        return violation
    if gpu.node_gpus is None or gpu.nvlink_domain is None or violation.value != gpu.nvlink_domain:
        return violation
    per_domain = gpu.nvlink_domain // gpu.node_gpus
    words = f"write gpus_per_node: {gpu.node_gpus} and nodes: {nodes * per_domain}"
    reason = f"NVLink joins {per_domain} nodes of {gpu.node_gpus} GPUs to a domain of {gpu.nvlink_domain}"
    change = {HERE: gpu.node_gpus, "cluster.nodes": nodes * per_domain}
    return replace(violation, reason=reason, fix=Fix(words, (change,)))


def _offered(violation: Violation) -> int | None:
    """The number that is offered in place of what is wrong, or the first of several."""
    changes = violation.fix.changes if isinstance(violation.fix, Fix) else ()
    value = changes[0].get(HERE) if changes else None
    return value if type(value) is int else None


class _Named:
    """What the spec only names, looked up: catalog entries and files. Rules read it under paths of its own."""

    def __init__(self, folder: Path, values: dict[str, Any], data: Mapping[str, Any]) -> None:
        self.folder = folder
        self.violations: list[Violation] = []
        self.resolved: dict[str, Any] = {}
        self.inputs: dict[str, str] = {}
        self._resolve(values, data)
        if "cluster.gpu.memory" in values:
            self._keep_own_gpu(data["cluster"]["gpu"])

    def _resolve(self, values: dict[str, Any], data: Mapping[str, Any]) -> None:
        if "model" in values:
            self._keep("model.shapes", _catalog_model("model", values["model"], data))
        if values.get("model.catalog"):
            self._keep("model.shapes", _catalog_model("model.catalog", values["model.catalog"], data))
        elif values.get("model.config") is not None:
            self._keep_config(values["model.config"], data)
        if "cluster.gpu" in values:
            self._keep("cluster.device", _catalog_gpu("cluster.gpu", values["cluster.gpu"]))
        for path in (f"{phase}.gpu" for phase in PHASES):
            if values.get(path):
                self._keep(f"{path}.device", _catalog_gpu(path, values[path]))
        if values.get("expert_load.file"):
            self._keep_loads(values["expert_load.file"])

    def _keep_config(self, written: str, data: Mapping[str, Any]) -> None:
        found = read_model_config(self.folder / written, written)
        if isinstance(found, Violation):
            self.violations.append(_of_the_catalog(found, data))
        else:
            self.inputs[written] = found.digest
            self.resolved |= {
                "model.shapes": found.model,
                "model.digest": found.digest,
                "model.other_quantization": found.other_quantization,
            }
            self._keep_weights_digest(written, found.digest)

    def _keep_weights_digest(self, written: str, config_digest: str) -> None:
        found = read_weights_digest(self.folder / written, written, config_digest)
        if isinstance(found, Violation):
            self.violations.append(found)
        elif found is not None:
            self.inputs[str(Path(written).with_name(MANIFEST))] = found
            self.resolved["model.digest_of_weights"] = found

    def _keep_loads(self, written: str) -> None:
        found = read_loads(self.folder / written, written)
        if isinstance(found, Violation):
            self.violations.append(found)
        else:
            self.inputs[written] = found.digest
            self.resolved["expert_load.loads"] = found.loads

    def _keep_own_gpu(self, section: Mapping[str, Any]) -> None:
        """A GPU that the spec describes, unless it does so wrongly, which has been said."""
        with suppress(ValidationError):
            self.resolved["cluster.device"] = _own_gpu(GpuSpec.model_validate(section))

    def _keep(self, path: str, found: object) -> None:
        if isinstance(found, Violation):
            self.violations.append(found)
        else:
            self.resolved[path] = found


def _catalog_model(path: str, name: str, data: Mapping[str, Any]) -> Model | Violation:
    """The model that `name` says."""
    if name in MODELS:
        return MODELS[name]
    known = ", ".join(MODELS)
    copy = copy_of(name)
    if copy and copy.precision == "":
        rule, reason = (
            "S307 is not planned yet",
            f"tidemill has no precision for weights in {copy.form.upper()}",
        )
        fix = f"choose a checkpoint of {copy.model} in another format, as fp8, and write {path}: {copy.model}"
        return Violation(path, name, rule, reason, fix)
    rule, reason = f"S304 must be in the catalog ({known})", "tidemill does not know its figures"
    if copy:
        return Violation(path, name, rule, reason, _instead_of_a_name(name, copy, HERE, data))
    reason = "it is a path" if is_path(name) else "its config.json plans where its family is known"
    return Violation(path, name, f"S307 is not in the catalog ({known})", reason, _by_its_files(name))


def _instead_of_a_name(name: str, copy: Copy, path: str, data: Mapping[str, Any]) -> Fix:
    """Offer the catalog's model, with the precision that the name of a quantised copy says, where no phase says it."""
    phases = [phase for phase in PHASES if copy.precision and isinstance(data.get(phase), dict)]
    unsaid = {f"{phase}.precision": copy.precision for phase in phases if data[phase].get("precision") is None}
    fix = did_you_mean(name, [copy.model])
    if not unsaid and path == HERE:
        return Fix(f"did you mean {copy.model}?", fix.changes)
    words = f"write {'catalog: ' if path != HERE else ''}{copy.model}"
    gone = {} if path == HERE else {HERE: None}
    more = "".join(f" and {each}: {precision}" for each, precision in unsaid.items())
    return Fix(f"{words}{more}", ({**gone, path: copy.model, **unsaid},))


def _of_the_catalog(violation: Violation, data: Mapping[str, Any]) -> Violation:
    """`violation` with the catalog's entry for its fix, where a hub's name stands in place of a config's path."""
    written = violation.value
    if violation.path != "model.config" or not is_hub_name(written) or not violation.rule.startswith("S301"):
        return violation
    copy = copy_of(written)
    if copy is None:
        return replace(violation, reason="no such file, and nothing is read from a hub")
    if copy.precision == "":
        reason = (
            f"this is the name of a model on a hub, not a file, and tidemill has no precision for {copy.form.upper()}"
        )
        fix = f"choose a checkpoint of {copy.model} in another format, as fp8, and write catalog: {copy.model}"
        return replace(violation, reason=reason, fix=fix)
    reason = f"this is the name of a model on a hub, not a file; the catalog calls it {copy.model}"
    return replace(violation, reason=reason, fix=_instead_of_a_name(written, copy, "model.catalog", data))


def _by_its_files(name: str) -> Fix | str:
    """What to write for a model that the catalog lacks: for a path, the files that it says."""
    if not is_path(name):
        return "give its config.json, as model: {config: ...}"
    path = PurePosixPath(name)
    config = path if path.suffix == ".json" else path / "config.json"
    files = {"config": str(config)} | ({"checkpoint": str(config.parent)} if config.is_absolute() else {})
    written = ", ".join(f"{key}: {value}" for key, value in files.items())
    return Fix(f"write model: {{{written}}}", ({"model": files},))


def _catalog_gpu(path: str, name: str) -> Gpu | Violation:
    if name in GPUS:
        return GPUS[name]
    known = ", ".join(GPUS)
    if product := unplanned_gpu(name):
        rule, reason = f"S306 is not planned yet: the catalog has {known}", f"the figures of {product} are not known"
        return Violation(path, name, rule, reason, "describe it, as gpu: {name: ...}")
    rule, reason = f"S305 must be in the catalog ({known})", "tidemill does not know its figures"
    return Violation(path, name, rule, reason, did_you_mean(name, list(GPUS)))


def _own_gpu(spec: GpuSpec) -> Gpu:
    figures = {
        "usable_bytes": spec.memory,
        "nvlink_gb_per_s": spec.nvlink and spec.nvlink / BITS_PER_BYTE,
        "peer_gb_per_s": spec.peer and spec.peer / BITS_PER_BYTE,
        "nvlink_domain": spec.nvlink_domain,
        "nic_gbps": spec.nic,
        "gpus_per_nic": spec.gpus_per_nic,
        "fp8_tflops": spec.fp8_tflops,
        "bf16_tflops": spec.bf16_tflops,
        "memory_gb_per_s": spec.memory_bandwidth and spec.memory_bandwidth / BITS_PER_BYTE,
        "kubernetes_resource": spec.kubernetes_resource,
    }
    known: dict[str, Any] = {name: figure for name, figure in figures.items() if figure is not None}
    return Gpu(device="cuda", nvlink_leaves_node=True, sources=dict.fromkeys(known, "the spec"), **known)


def _given_keys(data: Mapping[str, Any], misspelt: frozenset[str]) -> dict[str, Any]:
    """Collect the keys present in the spec, misspelt ones included, for rules about keys that exclude others."""
    sections = {name: section for name, section in data.items() if isinstance(section, dict)}
    given = {
        f"{name}.given": frozenset(key for key, value in section.items() if value is not None)
        for name, section in sections.items()
    }
    written = frozenset(name for name, section in data.items() if section is not None)
    return {"spec.sections": written | misspelt, "expert_load.given": frozenset()} | given


def _units(values: Mapping[str, Any]) -> dict[str, Any]:
    """How many units each phase has, for the rule about their names; and the GPUs that there are for one of them."""
    counts = {phase: values[f"{phase}.units"] for phase in PHASES if f"{phase}.units" in values}
    for window in values.get("schedule.windows") or []:
        counts |= {phase: max(number, window.get(f"{phase}_units") or 0) for phase, number in counts.items()}
    return {"spec.units": counts} | _room(values, counts) if counts else {}


def _room(values: Mapping[str, Any], counts: Mapping[Phase, int]) -> dict[str, int]:
    """The GPUs of the nodes that other phases leave to each unit of a phase, where that is at least one node."""
    nodes, per_node = values.get("cluster.nodes"), values.get("cluster.gpus_per_node")
    if nodes is None or per_node is None:
        return {}
    taken = {phase: count * max(1, values.get(f"{phase}.ep_size", 1) // per_node) for phase, count in counts.items()}
    num_nodes = (nodes if isinstance(nodes, int) else len(nodes)) - len(values.get("cluster.spares") or ())
    left = {phase: num_nodes - (sum(taken.values()) - taken[phase]) for phase in counts}
    return {
        f"{phase}.room": left[phase] // count * per_node for phase, count in counts.items() if left[phase] >= count > 0
    }

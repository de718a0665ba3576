"""What a spec only names, looked up: entries of the catalog, and files. No other part of the planner reads a file.

A name that the catalog lacks is answered with what was meant: a hub's name of a model, a quantised copy's, a path.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from planner.facts.catalog import GPUS, Gpu
from planner.facts.checkpoint_manifest import MANIFEST, read_weights_digest
from planner.facts.gpu_names import instead_of_gpu, unplanned_gpu
from planner.facts.loads import moe_rows, read_loads
from planner.facts.model import Model
from planner.facts.quantisation import W4A16
from planner.facts.terms import PHASES
from planner.families import MODELS, Misnamed, read_model_config
from planner.problems.errors import Violation
from planner.problems.fix import HERE, Fix, did_you_mean
from planner.spec.cluster import GpuSpec
from planner.spec.model_names import Copy, beginning_with, copy_of, is_hub_name, is_path

__all__ = ["Named"]

BITS_PER_BYTE = 8


class Named:
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
        if values.get("model.catalog") is not None:
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
        if values.get("traffic.history") and "traffic.quantile" in values:
            zone = values.get("schedule.timezone", "UTC")
            self._keep_history(values["traffic.history"], values["traffic.quantile"], zone)

    def _keep_config(self, written: str, data: Mapping[str, Any]) -> None:
        found = read_model_config(self.folder / written, written)
        if isinstance(found, Violation):
            self.violations.append(_of_the_catalog(found, data))
        else:
            self.inputs |= {written: found.digest, **found.beside}
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
            self.resolved["expert_load.loads"] = found.rows
            if isinstance(model := self.resolved.get("model.shapes"), Model):
                self.resolved["expert_load.loads"] = moe_rows(found.rows, model.num_dense_layers, model.are_hashed)

    def _keep_history(self, written: str, quantile: float, zone: str) -> None:
        from planner.facts.forecast import forecast  # only those who have past days should wait for it
        from planner.facts.history import read_history

        found = read_history(self.folder / written, written, zone)
        if isinstance(found, Violation):
            self.violations.append(found)
        else:
            self.inputs[written] = found.digest
            following = forecast(found.history, quantile)
            self._keep("traffic.forecast", following if any(following.quantile) else _without_demand(written))

    def _keep_own_gpu(self, section: Mapping[str, Any]) -> None:
        """A GPU that the spec describes, unless it does so wrongly, which has been said."""
        with suppress(ValidationError):
            self.resolved["cluster.device"] = _own_gpu(GpuSpec.model_validate(section))

    def _keep(self, path: str, found: object) -> None:
        if isinstance(found, Violation):
            self.violations.append(found)
        else:
            self.resolved[path] = found


def _without_demand(written: str) -> Violation:
    """Say of past days what S610 says of a profile: nothing can be planned for a day without demand."""
    rule, reason = "S610 must be above 0 in some hour", "the day's tokens must arrive at some hour"
    fix = Fix("leave it out to spread tokens evenly over the day", ({"traffic.history": None},))
    return Violation("traffic.history", written, rule, reason, fix)


def _catalog_model(path: str, name: str, data: Mapping[str, Any]) -> Model | Violation:
    """The model that `name` says."""
    if name in MODELS:
        return MODELS[name]
    known = ", ".join(MODELS)
    copy = copy_of(name)
    if copy and copy.precision == "":
        return Violation(path, name, "S307 is not planned yet", _why_not_in(copy), _in_another_form(path, copy))
    rule, reason = f"S304 must be in the catalog ({known})", "tidemill does not know its figures"
    if copy:
        return Violation(path, name, rule, reason, _instead_of_a_name(name, copy, HERE, data))
    if alike := beginning_with(name):
        reason = (
            f"the catalog has {len(alike)} names that begin with it" if len(alike) > 1 else "one name begins with it"
        )
        return Violation(path, name, rule, reason, f"write {' or '.join(alike)}")
    reason = "it is a path" if is_path(name) else "a model of a known family can be planned from its config.json"
    return Violation(path, name, f"S307 is not in the catalog ({known})", reason, _by_its_files(name))


def _why_not_in(copy: Copy) -> str:
    """Say that no precision is what the name of a copy says its weights are in."""
    if copy.is_int4:
        return f"its {copy.form.upper()} may be other than w4a16 here, which is {W4A16.words}"
    return f"tidemill has no precision for weights in {copy.form.upper()}"


def _in_another_form(path: str, copy: Copy) -> str:
    of_int4 = ", or give its config.json" if copy.is_int4 else ""
    return f"choose a checkpoint of {copy.model} in another format, as fp8, and write {path}: {copy.model}{of_int4}"


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
    if isinstance(violation, Misnamed) and (name := _with_the_shapes_of(violation.model)):
        meant = Copy(name, violation.model.weights_in, "")
        fix = _instead_of_a_name(str(written), meant, "model.catalog", data)
        return replace(violation, fix=Fix(f"{fix}, or {violation.fix}", fix.changes))
    if violation.path != "model.config" or not is_hub_name(written) or not violation.rule.startswith("S301"):
        return violation
    copy = copy_of(written)
    if copy is None:
        return replace(violation, reason="no such file, and nothing is read from a hub")
    if copy.precision == "":
        reason = f"this is the name of a model on a hub, not a file, and {_why_not_in(copy)}"
        return replace(violation, reason=reason, fix=_in_another_form("catalog", copy))
    reason = f"this is the name of a model on a hub, not a file; the catalog calls it {copy.model}"
    return replace(violation, reason=reason, fix=_instead_of_a_name(written, copy, "model.catalog", data))


def _with_the_shapes_of(model: Model) -> str | None:
    """Return the catalog's model that has the same layers, in whatever format."""
    layers = [(each.attention, each.ffn) for each in model.layers]
    alike = (name for name, its in MODELS.items() if layers == [(each.attention, each.ffn) for each in its.layers])
    return next((name for name in alike if MODELS[name].vocab_size == model.vocab_size), None)


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
        return Violation(path, name, rule, reason, _described(path))
    rule, reason = f"S305 must be in the catalog ({known})", "tidemill does not know its figures"
    fix = instead_of_gpu(name, list(GPUS))
    return Violation(path, name, rule, reason, fix if fix.changes else f"{fix}, or {_described(path)}")


def _described(path: str) -> str:
    """Say where the figures of a GPU are written that the catalog lacks: one GPU can have them, the cluster's."""
    if path == "cluster.gpu":
        return "describe it, as gpu: {name: ...}"
    return "describe it as cluster.gpu, and name one of the catalog here"


def _own_gpu(spec: GpuSpec) -> Gpu:
    """The GPU that a spec describes."""
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

"""Look up the catalog entries and files that a spec names. No other part of the planner reads these files."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.facts.catalog import GPUS, Gpu, same_gpu
from planner.facts.checkpoint_manifest import MANIFEST, read_weights_digest
from planner.facts.digest import digest_of_bytes
from planner.facts.files import explain_unreadable, read_file
from planner.facts.loads import moe_rows, read_loads
from planner.facts.model import Model
from planner.facts.quantities import BITS_PER_BYTE
from planner.facts.reuse import reuse_in
from planner.facts.terms import PHASES
from planner.facts.trace import NotATrace
from planner.families import MODELS, find_spelling, read_model_config
from planner.problems.finding import Finding
from planner.problems.fix import did_you_mean
from planner.spec.cluster import OF_OWN_GPUS, GpuSpec

# fields that name a file, relative to the spec's
FILES = ("model.config", "expert_load.file", "traffic.trace")


class NamedInputs:
    """The catalog entries and the contents of files that a spec names, each in `resolved` under a path of its own."""

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        self.folder = folder
        self.findings: list[Finding] = []
        self.resolved: dict[str, Any] = {}
        self.inputs: dict[str, str] = {}
        self._resolve(values)
        if "cluster.gpu.memory" in values:
            self._keep_own_gpu(values)

    def _resolve(self, values: dict[str, Any]) -> None:
        if "model" in values:
            self._keep("model.shapes", _catalog_model("model", values["model"]))
        if values.get("model.catalog") is not None:
            self._keep("model.shapes", _catalog_model("model.catalog", values["model.catalog"]))
        elif values.get("model.config") is not None:
            self._keep_config(values["model.config"])
        if "cluster.gpu" in values:
            self._keep("cluster.device", _catalog_gpu("cluster.gpu", values["cluster.gpu"]))
        for path in (f"{phase}.gpu" for phase in PHASES):
            if values.get(path):
                self._keep(f"{path}.device", _catalog_gpu(path, values[path]))
        if values.get("expert_load.file"):
            self._keep_loads(values["expert_load.file"])
        if values.get("traffic.trace"):
            self._keep_reuse(values["traffic.trace"])

    def _keep_config(self, written: str) -> None:
        found = read_model_config(self.folder / written, written)
        if isinstance(found, Finding):
            self.findings.append(found)
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
        if isinstance(found, Finding):
            self.findings.append(found)
        elif found is not None:
            self.inputs[str(Path(written).with_name(MANIFEST))] = found
            self.resolved["model.digest_of_weights"] = found

    def _keep_loads(self, written: str) -> None:
        found = read_loads(self.folder / written, written)
        if isinstance(found, Finding):
            self.findings.append(found)
        else:
            self.inputs[written] = found.digest
            self.resolved["expert_load.loads"] = found.rows
            if isinstance(model := self.resolved.get("model.shapes"), Model):
                self.resolved["expert_load.loads"] = moe_rows(found.rows, model.num_dense_layers, model.are_hashed)

    def _keep_reuse(self, written: str) -> None:
        try:
            content = read_file(self.folder / written)
            self.resolved["traffic.reuse"] = reuse_in(content)
            self.inputs[written] = digest_of_bytes(content)
        except OSError as error:
            rule = "S617 must be a readable file"
            self.findings.append(Finding("traffic.trace", written, rule, *explain_unreadable(error)))
        except NotATrace as error:
            rule = "S625 must be a trace of Mooncake's format, with hash_ids and some minutes of prompts"
            self.findings.append(Finding("traffic.trace", written, rule, str(error), "see docs/simulate.md"))

    def _keep_own_gpu(self, values: Mapping[str, Any]) -> None:
        """Keep the figures of the GPU that the spec itself describes, if its fields are valid."""
        with suppress(ValidationError):
            section = {name: values.get(f"cluster.gpu.{name}") for name in GpuSpec.model_fields}
            resource = values.get("kubernetes.gpu_resource") or OF_OWN_GPUS
            self.resolved["cluster.device"] = _own_gpu(GpuSpec.model_validate(section), resource)

    def _keep(self, path: str, found: object) -> None:
        if isinstance(found, Finding):
            self.findings.append(found)
        else:
            self.resolved[path] = found


def _catalog_model(path: str, name: str) -> Model | Finding:
    """Return the catalog's model `name`, or the finding for the field at `path` if there is none."""
    if name in MODELS:
        return MODELS[name]
    meant = find_spelling(name)
    fix = did_you_mean(meant, [meant]) if meant else "give its config.json, as model: {config: ...}"
    reason = "a model of a known family can be planned from its config.json"
    return Finding(path, name, f"S304 must be in the catalog ({', '.join(MODELS)})", reason, fix)


def _catalog_gpu(path: str, name: str) -> Gpu | Finding:
    if name in GPUS:
        return GPUS[name]
    meant = same_gpu(name)
    fix = did_you_mean(meant, [meant]) if meant else "describe it, as cluster.gpu: {name: ...}"
    return Finding(path, name, f"S304 must be in the catalog ({', '.join(GPUS)})", "its figures must be known", fix)


def _own_gpu(spec: GpuSpec, resource: str) -> Gpu:
    """Return the figures of the GPU that a spec describes. Pods request it as `resource`."""
    figures = {
        "usable_bytes": spec.memory,
        "nvlink_gb_per_s": spec.nvlink and spec.nvlink / BITS_PER_BYTE,
        "nvlink_domain": spec.nvlink_domain,
        "nic_gbps": spec.nic,
        "gpus_per_nic": spec.gpus_per_nic,
        "fp8_tflops": spec.fp8_tflops,
        "bf16_tflops": spec.bf16_tflops,
        "memory_gb_per_s": spec.memory_bandwidth and spec.memory_bandwidth / BITS_PER_BYTE,
        "kubernetes_resource": resource,
    }
    known: dict[str, Any] = {name: figure for name, figure in figures.items() if figure is not None}
    return Gpu(device="cuda", nvlink_leaves_node=True, sources=dict.fromkeys(known, "the spec"), **known)

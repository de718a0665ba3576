"""Rules about `model` and `engine`: the source of shapes, precision, the checkpoint's volumes, the engine's version.

What an engine cannot run is checked in `engine_limits.py`: such a spec is valid but infeasible.
"""

from collections.abc import Iterator

from planner.facts.engines import ENGINES, OURS
from planner.facts.quantisation import kv_dtype
from planner.facts.terms import EngineName
from planner.problems.finding import Finding
from planner.problems.fix import Change, Fix, nearest, removal
from planner.rules.rule import Candidate, Rule
from planner.rules.valid_values import ValidValues
from planner.spec.pods import volume_of
from planner.spec.schema import Spec


def model_has_one_source(c: ValidValues) -> Iterator[Finding]:
    """Require exactly one source of the model's shapes: a config file or a catalog entry."""
    if not isinstance(c.data.get("model"), dict):
        return
    has_file, has_entry = (c.is_given(path) or path in c.sections for path in ("model.config", "model.catalog"))
    if has_file and has_entry:
        rule, reason = "S507 must not be combined with config", "each of them gives the model's shapes"
        yield Finding("model.catalog", None, rule, reason, removal("model.catalog", words="remove it"))
        return
    if has_file or has_entry:
        return
    rule, reason = "S202 is required, unless model.catalog is given", "one of the two must give the model's shapes"
    fix = "give the checkpoint's config.json, or the model's name in the catalog"
    yield Finding("model.config", None, rule, reason, fix)


def engine_version_is_known(c: ValidValues) -> Iterator[Finding]:
    """Reject engine versions that the planner does not know: their options may have other names."""
    version: str | None = c["engine.version"]
    name: EngineName = c["engine.name"]
    known = ENGINES[name].versions
    if known and version not in (None, *known):
        rule = f"S540 must be {' or '.join(known)}"
        reason = f"tidemill knows the options of no other version of {name}"
        yield Finding("engine.version", version, rule, reason, nearest(*known))


def weights_match_checkpoint(c: Candidate) -> Iterator[Finding]:
    """Warn if the checkpoint's weights are in an unknown format: memory is planned for the spec's precision instead."""
    spec = c.resolved
    if spec.other_quantization is not None:
        for phase in spec.phases:
            rule = f"W113 is not what the checkpoint says ({spec.other_quantization})"
            reason = f"memory is planned for weights in {spec.phase(phase).precision}, and this checkpoint's are others"
            fix = "give the config.json of the checkpoint that is meant"
            yield Finding(f"{phase}.precision", spec.phase(phase).precision, rule, reason, fix)


def pods_mount_checkpoint(c: Candidate) -> Iterator[Finding]:
    """Warn if no volume of GPU pods contains the checkpoint's folder. Images rarely contain weights."""
    spec = c.resolved.written
    path, kubernetes = spec.checkpoint, spec.kubernetes
    is_mounted = path is None or volume_of(path, [volume.model_dump() for volume in kubernetes.volumes]) is not None
    if spec.is_on_gpus and path is not None and not is_mounted and kubernetes.stage is None:
        rule = "W106 is in none of kubernetes.volumes"
        reason = "pods see only the volumes they mount, and images rarely contain weights"
        yield Finding("model.checkpoint", path, rule, reason, "add the volume that it is on to kubernetes.volumes")


def gateway_mounts_tokenizer(c: Candidate) -> Iterator[Finding]:
    """Warn if the gateway has volumes of its own and none of them contains the checkpoint's tokenizer."""
    spec = c.resolved.written
    read, own = _gateway_checkpoint(spec), [volume.model_dump() for volume in spec.kubernetes.gateway.volumes or ()]
    if read is not None and own and volume_of(read, own) is None:
        rule = "W106 is in none of kubernetes.gateway.volumes"
        reason = "of the checkpoint the gateway reads config.json and the tokenizer's files"
        fix = "add a volume with them to kubernetes.gateway.volumes, or write [] if they are in its image"
        yield Finding("model.checkpoint", spec.checkpoint, rule, reason, fix)


def checkpoint_brings_no_code(c: Candidate) -> Iterator[Finding]:
    """Warn if SGLang or vLLM would run Python code that the checkpoint contains (`auto_map` in its config).

    Without `--trust-remote-code` the engine would silently use another tokenizer. A plan's digests pin config.json and
    tensors, but not that code.
    """
    spec = c.resolved
    if spec.written.engine_name != OURS and spec.model.brings_code:
        rule = f"W160 brings code that {spec.written.engine_name} is told to run (--trust-remote-code)"
        reason = "its tokenizer or model is a program, which no digest of the plan covers"
        fix = "read the checkpoint's .py files, and keep it where only you can write"
        yield Finding("model.checkpoint", spec.written.checkpoint, rule, reason, fix)


def kv_matches_checkpoint(c: Candidate) -> Iterator[Finding]:
    """Warn if an engine other than ours leaves KV in BF16 though the checkpoint's config says FP8 for it."""
    spec = c.resolved
    own = spec.model.quantisation
    if spec.written.engine_name == OURS or own.kv != "fp8":
        return
    change: Change = {f"{phase}.kv_precision": "fp8" for phase in spec.phases}
    for phase in spec.phases:
        section = spec.phase(phase)
        if section.kv_precision is None and kv_dtype(section.precision) != own.kv:
            rule = f"W113 is not given, and the checkpoint's {own.said_in} says FP8 for KV"
            reason = "KV is planned in BF16, and the engine told so: it takes twice the memory"
            fix = Fix("write kv_precision: fp8 in all phases, or bf16 to keep it", (change,))
            yield Finding(f"{phase}.kv_precision", None, rule, reason, fix)


def _gateway_checkpoint(spec: Spec) -> str | None:
    """Return the folder where the gateway reads the tokenizer; None if GPUs, a checkpoint or our gateway is missing.

    Usually it is the folder that the ranks read too. If the checkpoint is staged, the gateway reads the original
    instead, unless it mounts volumes of its own.
    """
    if not spec.is_on_gpus or spec.checkpoint is None or spec.engine_name != OURS:
        return None
    stage, own = spec.kubernetes.stage, spec.kubernetes.gateway.volumes
    return stage.source if stage is not None and own is None else spec.checkpoint


RULES = (
    Rule("S202 S507", "fields", model_has_one_source),
    Rule("S540", "fields", engine_version_is_known),
    Rule("W113", "laid out", weights_match_checkpoint),
    Rule("W106", "started", pods_mount_checkpoint),
    Rule("W106", "started", gateway_mounts_tokenizer),
    Rule("W160", "started", checkpoint_brings_no_code),
    Rule("W113", "started", kv_matches_checkpoint),
)

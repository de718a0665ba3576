"""The rules of `model`: where its shapes come from, which digests it has, and where pods find the checkpoint."""

from collections.abc import Iterator

from planner.facts.engines import OURS
from planner.problems.finding import Finding
from planner.problems.fix import Change, Fix, removal
from planner.rules.rule import Candidate, Rule, without_effect
from planner.rules.written import Written
from planner.spec.pods import volume_of
from planner.spec.precision import kv_dtype
from planner.spec.schema import Spec

__all__ = ["RULES"]


def model_has_an_origin(c: Written) -> Iterator[Finding]:
    """Its shapes are in a file or in the catalog, and not in both."""
    if not isinstance(c.data.get("model"), dict):
        return
    has_file, has_entry = (c.gives(path) or path in c.sections for path in ("model.config", "model.catalog"))
    if has_file and has_entry:
        rule, reason = "S507 must not be combined with config", "each of them gives the model's shapes"
        yield Finding("model.catalog", None, rule, reason, removal("model.catalog", words="remove it"))
        return
    if has_file or has_entry:
        return
    rule, reason = "S202 is required, unless model.catalog is given", "one of the two must give the model's shapes"
    fix = "give the checkpoint's config.json, or the model's name in the catalog"
    yield Finding("model.config", None, rule, reason, fix)


def digests_are_of_unseen_files(c: Written) -> Iterator[Finding]:
    """Refuse digests beside a config.json: both are computed from it, and a second origin could only differ."""
    config: str | None = c["model.config"]
    of_config: str | None = c["model.config_digest"]
    of_weights: str | None = c["model.weights_digest"]
    written = {"config_digest": of_config, "weights_digest": of_weights} if config is not None else {}
    for key, digest in written.items():
        if digest is not None:
            reason = "it is computed from the file, and from the manifest beside it"
            yield without_effect("with config", reason, f"model.{key}", digest)


def weights_are_as_the_checkpoint_says(c: Candidate) -> Iterator[Finding]:
    """Yield precisions that stand for weights in a form that nobody here knows: engines may refuse to load them."""
    spec = c.resolved
    if spec.other_quantization is not None:
        for phase in spec.phases:
            rule = f"W113 is not what the checkpoint says ({spec.other_quantization})"
            reason = f"memory is planned for weights in {spec.phase(phase).precision}, and this checkpoint's are others"
            fix = "give the config.json of the checkpoint that is meant"
            yield Finding(f"{phase}.precision", spec.phase(phase).precision, rule, reason, fix)


def pods_see_the_checkpoint(c: Candidate) -> Iterator[Finding]:
    """Yield a folder of weights that pods on GPUs do not mount; the image may hold it, but seldom does."""
    spec = c.resolved.written
    path, kubernetes = spec.checkpoint, spec.kubernetes
    is_mounted = path is None or volume_of(path, [volume.model_dump() for volume in kubernetes.volumes]) is not None
    if spec.is_on_gpus and path is not None and not is_mounted and kubernetes.stage is None:
        rule = "W106 is in none of kubernetes.volumes"
        reason = "pods see only the volumes they mount, and images rarely contain weights"
        yield Finding("model.checkpoint", path, rule, reason, "add the volume that it is on to kubernetes.volumes")


def gateways_see_the_tokenizer(c: Candidate) -> Iterator[Finding]:
    """Yield a checkpoint whose tokenizer is on no volume that the gateway mounts of its own."""
    spec = c.resolved.written
    read, own = _read_by_gateway(spec), [volume.model_dump() for volume in spec.kubernetes.gateway.volumes or ()]
    if read is not None and own and volume_of(read, own) is None:
        rule = "W106 is in none of kubernetes.gateway.volumes"
        reason = "of the checkpoint the gateway reads config.json and the tokenizer's files"
        fix = "add a volume with them to kubernetes.gateway.volumes, or write [] if they are in its image"
        yield Finding("model.checkpoint", spec.checkpoint, rule, reason, fix)


def checkpoints_are_no_programs(c: Candidate) -> Iterator[Finding]:
    """Another engine runs the code that `auto_map` names: without it, it takes another tokenizer and says nothing.

    A plan pins config.json and tensors by their digests, and no program beside them.
    """
    spec = c.resolved
    if spec.written.engine_name != OURS and spec.model.brings_code:
        rule = f"W160 brings code that {spec.written.engine_name} is told to run (--trust-remote-code)"
        reason = "its tokenizer or model is a program, which no digest of the plan covers"
        fix = "read the checkpoint's .py files, and keep it where only you can write"
        yield Finding("model.checkpoint", spec.written.checkpoint, rule, reason, fix)


def kv_is_as_the_checkpoint_says(c: Candidate) -> Iterator[Finding]:
    """Yield KV in BF16, unwritten, of a checkpoint whose makers say FP8, as the engine would keep it by itself."""
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


def _read_by_gateway(spec: Spec) -> str | None:
    """Return the folder from which our gateway reads the tokenizer; None where units on GPUs have no such gateway.

    It reads where the ranks read. Of a staged checkpoint it sees the original, unless it mounts volumes of its own.
    """
    if not spec.is_on_gpus or spec.checkpoint is None or spec.engine_name != OURS:
        return None
    stage, own = spec.kubernetes.stage, spec.kubernetes.gateway.volumes
    return stage.source if stage is not None and own is None else spec.checkpoint


RULES = (
    Rule("S202 S507", "fields", model_has_an_origin),
    Rule("S560", "fields", digests_are_of_unseen_files),
    Rule("W113", "laid out", weights_are_as_the_checkpoint_says),
    Rule("W106", "started", pods_see_the_checkpoint),
    Rule("W106", "started", gateways_see_the_tokenizer),
    Rule("W160", "started", checkpoints_are_no_programs),
    Rule("W113", "started", kv_is_as_the_checkpoint_says),
)

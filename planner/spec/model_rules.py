"""The rules of `model`: one origin of its shapes, digests only of files that the planner does not see, a checkpoint
that pods can find. `layout_rules.py` asks them with the others.
"""

import re

from planner.problems.fix import removal
from planner.spec.rule import Broken, Rule, declare_in

__all__ = ["RULES"]

RULES: list[Rule] = []
_reads = declare_in(RULES)


@_reads("model.given", "spec.sections")
def model_has_an_origin(given: frozenset[str], written: frozenset[str]) -> Broken | None:
    """Its shapes are in a file or in the catalog, and not in both."""
    has_file, has_entry = (key in given or f"model.{key}" in written for key in ("config", "catalog"))
    if has_file and has_entry:
        rule, reason = "S310 must not be combined with config", "each of them gives the model's shapes"
        return Broken(rule, reason, removal("model.catalog", words="remove it"), path="model.catalog")
    if has_file or has_entry:
        return None
    rule, reason = "S309 is required, unless model.catalog is given", "one of the two must give the model's shapes"
    fix = "give the checkpoint's config.json, or the model's name in the catalog"
    return Broken(rule, reason, fix, "model.config")


@_reads("model.config", "model.config_digest", "model.weights_digest")
def digests_are_of_unseen_files(config: str | None, of_config: str | None, of_weights: str | None) -> list[Broken]:
    """Refuse digests beside a config.json: both are computed from it, and a second origin could only differ."""
    written = {"config_digest": of_config, "weights_digest": of_weights} if config is not None else {}
    return [
        Broken(
            "S311 belongs with catalog, not with config",
            "it is computed from the file, and from the manifest beside it",
            removal(),
            path=f"model.{key}",
            value=digest,
        )
        for key, digest in written.items()
        if digest is not None
    ]


@_reads("model.checkpoint")
def checkpoint_can_be_found(checkpoint: str | None) -> Broken | None:
    """The runtime looks for it in the pod, where the spec's folder means nothing."""
    if checkpoint is None or checkpoint.startswith("/") or re.fullmatch(r"bundled:[a-z0-9_-]+", checkpoint):
        return None
    rule, reason = (
        "S406 must be bundled:NAME or an absolute path",
        "the runtime looks for it where it runs, not next to the spec",
    )
    return Broken(rule, reason, "write its folder in the pod, as /models/...")

"""The spec's `model` section: a checkpoint's shapes, and the path of its weights at run time."""

from typing import Annotated

from pydantic import Field

from planner.families import MODELS
from planner.spec.section import ARGUMENT, Section, one_of

DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"

A_MODEL = next(iter(MODELS))  # for examples
_A_DIGEST = f"sha256:{'0' * 64}"


class ModelSpec(Section):
    """A model, given by its checkpoint's config.json, or by its catalog name if only the pods have the checkpoint."""

    config: str | None = Field(
        default=None,
        min_length=1,
        description="The checkpoint's config.json, relative to this spec, with the shapes that the planner reads.",
        examples=["models/deepseek/config.json"],
    )
    catalog: Annotated[str, one_of(MODELS)] | None = Field(
        default=None,
        description="A model of the catalog, in place of config. Its shapes are known without the checkpoint.",
        examples=[A_MODEL],
    )
    checkpoint: str | None = Field(
        default=None,
        min_length=1,
        pattern=ARGUMENT,
        description="Weights for the runtime: bundled:NAME or an absolute path in the pod. Without it the spec can"
        " be planned but not run. It must not contain $, which pods would expand.",
        examples=["bundled:demo"],
    )
    config_digest: str | None = Field(
        default=None,
        pattern=DIGEST_PATTERN,
        description="With catalog: the sha256 of the checkpoint's config.json. Ranks refuse other checkpoints;"
        " without the digest, they only check that all ranks have the same one.",
        examples=[_A_DIGEST],
    )
    weights_digest: str | None = Field(
        default=None,
        pattern=DIGEST_PATTERN,
        description="With catalog: the sha256 of the manifest that tidemill checkpoint digest writes. Ranks compare"
        " the weights that they read with that manifest.",
        examples=[_A_DIGEST],
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        pattern=ARGUMENT,
        description="Model name in /v1/models, by default the spec's name. It is part of pods' commands, so it has"
        " no $ and does not begin with -.",
        examples=[A_MODEL],
    )

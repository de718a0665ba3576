"""The adapter of each engine: what its units run, and what stands before them."""

from collections.abc import Callable
from dataclasses import dataclass

from planner.engines import sglang, vllm
from planner.engines.container import Container, Phased
from planner.facts.engines import ENGINES
from planner.facts.terms import EngineName
from planner.layout.unit import Unit
from planner.spec.kubernetes import DEFAULT_IMAGE
from planner.spec.schema import Spec

__all__ = ["gateway_container", "unit_container"]


@dataclass(frozen=True)
class Adapter:
    """One engine's, for units and for the gateway; the last argument is the image."""

    unit: Callable[[Spec, Unit, Phased, str], Container]
    router: Callable[[Spec, int, str], Container]


ADAPTERS: dict[EngineName, Adapter] = {
    "sglang": Adapter(sglang.unit_container, sglang.router),
    "vllm": Adapter(vllm.unit_container, vllm.router),
}


def unit_container(spec: Spec, unit: Unit, known: Phased) -> Container:
    """Return what each pod of `unit` runs, on an engine that is not ours."""
    return ADAPTERS[spec.engine_name].unit(spec, unit, known, _image(spec))


def gateway_container(spec: Spec, start_s: int) -> Container:
    """Return what takes the requests for such units, which get `start_s` to start."""
    image = spec.kubernetes.gateway.image or ENGINES[spec.engine_name].router_image or _image(spec)
    return ADAPTERS[spec.engine_name].router(spec, start_s, image)


def _image(spec: Spec) -> str:
    """Return the spec's image; where it names none, the one that the engine's makers publish."""
    published = ENGINES[spec.engine_name].image
    assert published is not None
    written = spec.kubernetes.image
    return published.format(version=spec.engine_version) if written == DEFAULT_IMAGE else written

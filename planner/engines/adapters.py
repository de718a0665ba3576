"""Look up an engine's adapter, which makes the containers of the engine's units and of its router."""

from collections.abc import Callable
from dataclasses import dataclass

from planner.engines import sglang, vllm
from planner.engines.container import Container, PhaseFacts
from planner.facts.engines import ENGINES
from planner.facts.terms import EngineName
from planner.layout.unit import Unit
from planner.spec.kubernetes import DEFAULT_IMAGE
from planner.spec.schema import Spec


@dataclass(frozen=True)
class Adapter:
    """The two functions that make an engine's containers; the last argument of each is the image."""

    unit: Callable[[Spec, Unit, PhaseFacts, str], Container]
    router: Callable[[Spec, int, str], Container]


ADAPTERS: dict[EngineName, Adapter] = {
    "sglang": Adapter(sglang.unit_container, sglang.router),
    "vllm": Adapter(vllm.unit_container, vllm.router),
}


def unit_container(spec: Spec, unit: Unit, known: PhaseFacts) -> Container:
    """Return the container of each pod of `unit`, whose engine is not the bundled runtime."""
    return ADAPTERS[spec.engine_name].unit(spec, unit, known, _image(spec))


def gateway_container(spec: Spec, start_s: int) -> Container:
    """Return the container of the engine's router, which gives units `start_s` seconds to start."""
    image = spec.kubernetes.gateway.image or ENGINES[spec.engine_name].router_image or _image(spec)
    return ADAPTERS[spec.engine_name].router(spec, start_s, image)


def _image(spec: Spec) -> str:
    """Return the spec's image or, if it gives none, the image that the engine's makers publish."""
    published = ENGINES[spec.engine_name].image
    assert published is not None
    written = spec.kubernetes.image
    return published.format(version=spec.engine_version) if written == DEFAULT_IMAGE else written

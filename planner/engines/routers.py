"""What both routers are told alike: vLLM's began as a copy of SGLang's.

A router watches the plan's pods at the API server, by their labels. It opens its port at once, long before units have
read their weights, and calls only pods that are ready. A pod that is to end leaves its list as soon as it is told so,
before it refuses requests. Units that the day turns on and off come and go by themselves.

A process that dies without a word is noticed by the router's own look at `/health`, and less soon by the kubelet's.
With their defaults routers look once a minute and believe the third failure. How long requests then fail, by what a
router is told, is measured in docs/performance.md.
"""

from collections.abc import Iterator

from planner.facts import names
from planner.facts.terms import Phase
from planner.spec.schema import Spec

__all__ = ["discovery", "health_checks"]

Option = tuple[str, ...]  # its name and its values


def discovery(spec: Spec, port: int, *labels: str) -> Iterator[Option]:
    """Yield which pods answer requests at `port`: those of the plan's units that have `labels` too."""
    yield ("--service-discovery",)
    yield "--service-discovery-namespace", spec.kubernetes.namespace
    yield "--service-discovery-port", str(port)
    if spec.mixed is not None:
        yield "--selector", *_selector(spec, "mixed"), *labels
        return
    yield "--prefill-selector", *_selector(spec, "prefill"), *labels
    yield "--decode-selector", *_selector(spec, "decode"), *labels


def health_checks(start_s: int) -> Iterator[Option]:
    """Yield how soon a dead pod is noticed; a new one gets `start_s` to answer.

    vLLM's router takes in one pod after the other, and asks one that does not answer every 30 s unless told otherwise.
    """
    yield "--worker-startup-timeout-secs", str(start_s)
    yield "--worker-startup-check-interval", "2"
    yield "--health-check-interval-secs", "2"
    yield "--health-failure-threshold", "1"


def _selector(spec: Spec, phase: Phase) -> Iterator[str]:
    return (f"{key}={value}" for key, value in names.phase_selector(spec.name, phase).items())

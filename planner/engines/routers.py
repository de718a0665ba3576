"""Options that SGLang's and vLLM's routers share: vLLM's began as a copy of SGLang's.

A router watches the plan's pods at the API server, by label. It opens its port at once, long before units have loaded
weights, and calls only ready pods. A terminating pod leaves its list at once, before it refuses requests. So units that
the schedule starts and stops need no further options.

A process that dies silently fails the router's own check of `/health`, which notices sooner than the kubelet. By
default routers check once a minute and act on the third failure. docs/performance.md has measurements of how long
requests fail, by option.
"""

from collections.abc import Iterator

from planner.facts import names
from planner.facts.terms import Phase
from planner.spec.schema import Spec

Option = tuple[str, ...]  # an option's name and values


def discovery_options(spec: Spec, port: int, *labels: str) -> Iterator[Option]:
    """Yield the options by which a router finds the pods of units that have `labels`, and calls them at `port`."""
    yield ("--service-discovery",)
    yield "--service-discovery-namespace", spec.kubernetes.namespace
    yield "--service-discovery-port", str(port)
    if spec.mixed is not None:
        yield "--selector", *_selector(spec, "mixed"), *labels
        return
    yield "--prefill-selector", *_selector(spec, "prefill"), *labels
    yield "--decode-selector", *_selector(spec, "decode"), *labels


def health_check_options(start_s: int) -> Iterator[Option]:
    """Yield the options of a router's health checks. A new pod gets `start_s` seconds to answer.

    vLLM's router adds pods one after the other, and by default waits 30 s before it asks a silent pod again.
    """
    yield "--worker-startup-timeout-secs", str(start_s)
    yield "--worker-startup-check-interval", "2"
    yield "--health-check-interval-secs", "2"
    yield "--health-failure-threshold", "1"


def _selector(spec: Spec, phase: Phase) -> Iterator[str]:
    return (f"{key}={value}" for key, value in names.phase_selector(spec.name, phase).items())

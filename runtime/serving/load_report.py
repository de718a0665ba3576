"""The report of a rank's load, sent to the gateways when the load has changed: `worker/worker.py` asks each LOAD_S.

A gateway counts the requests that it sent to a rank (`gateway/ranks/ledger.py`). The report adds what it cannot know:
how much of a long prompt is computed, and what other gateways sent.
"""

from collections.abc import Callable

from runtime.protocol.counting import attention_pairs, round_up_to_page
from runtime.protocol.messages import Load
from runtime.serving.scheduler import Scheduler

__all__ = ["LoadReport", "measure_load"]


class LoadReport:
    """Reports the load of one rank to the gateways, by calling `say`."""

    def __init__(self, scheduler: Scheduler, say: Callable[[Load], None]) -> None:
        self._scheduler, self._say = scheduler, say
        self._last: Load | None = None

    def tell(self) -> None:
        """Report the load if it has changed since the last report."""
        load = measure_load(self._scheduler, self._scheduler.take_arrived())
        if load != self._last:
            self._last = load
            self._say(load)


def measure_load(scheduler: Scheduler, arrived: list[str]) -> Load:
    """Return the load of the scheduler's requests. `arrived` are the ids of the new requests.

    Cached tokens of a prompt count as computed, as they do in the gateway's own count. The metrics port's thread calls
    this as well, so the lists are copied first.
    """
    running = list(scheduler.running)
    requests = [*running, *scheduler.waiting, *scheduler.fetching]
    left = [
        (max(request.num_cached, request.num_found), request.num_to_prefill)
        for request in requests
        if request.is_prefilling
    ]
    return Load(
        num_requests=len(requests),
        num_waiting=len(requests) - len(running),
        prompt_tokens=sum(end - begin for begin, end in left),
        attention_pairs=sum(attention_pairs(begin, end) for begin, end in left),
        kv_tokens=sum(round_up_to_page(request.num_tokens) for request in requests),
        arrived=arrived,
    )

"""Clocks for a step's stages: events on a GPU's stream, also inside a recorded step, or the host's clock on a CPU."""

import time
from contextlib import contextmanager

import torch

__all__ = ["Clock", "EventClock", "HostClock"]


class Clock:
    """Times calls, and the spans of a model while it is `watching`. A span's own time is without spans inside it."""

    def __init__(self):
        self.is_watching, self._open, self._spans = False, [], []

    def seconds(self, function):
        """Call it, and return how long it took on the clock's device."""
        began = self.mark()
        function()
        ended = self.mark()
        self.finish()
        return self.between(began, ended)

    @contextmanager
    def watching(self):
        """Keep the spans of what follows."""
        self.is_watching = True
        yield
        self.is_watching = False

    def take(self):
        """Return the spans that were kept since this was called last."""
        taken, self._spans = self._spans, []
        return taken

    @contextmanager
    def span(self, name, layer=None):
        """Take the place of `runtime.trace.span`."""
        if not self.is_watching:
            yield
            return
        self._open.append([])
        began = self.mark()
        yield
        whole, inside = (began, self.mark()), self._open.pop()
        if self._open:
            self._open[-1].append(whole)
        self._spans.append((name, whole, inside))

    def of_stages(self, spans):
        """Return the sum of each stage's seconds, by its name, without those of spans inside its own."""
        self.finish()
        found = {}
        for name, whole, inside in spans:
            own_s = self.between(*whole) - sum(self.between(*each) for each in inside)
            found[name] = found.get(name, 0.0) + own_s
        return found


class EventClock(Clock):
    """The time of a GPU's stream. A replayed step writes its events anew, since they are external to the recording."""

    def __init__(self, device):
        super().__init__()
        self._device = device

    def mark(self):
        event = torch.cuda.Event(enable_timing=True, external=True)
        event.record()
        return event

    def finish(self):
        torch.cuda.synchronize(self._device)

    def between(self, began, ended):
        return began.elapsed_time(ended) / 1e3


class HostClock(Clock):
    """The host's own time."""

    def mark(self):
        return time.perf_counter()

    def finish(self):
        """Nothing is under way."""

    def between(self, began, ended):
        return ended - began

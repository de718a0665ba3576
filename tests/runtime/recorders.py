"""Recorders of steps for tests on a CPU: a replay computes again, and writes where the recording wrote."""

from runtime.expert_parallel.traffic import TrafficTotals

__all__ = ["Counted", "Recorder"]


class Recorder:
    """A recorder that keeps the computation, to do it again."""

    def __init__(self):
        self.num_replays = 0

    def record(self, compute):
        recorder, result = self, compute()

        class Recording:
            def replay(self):
                recorder.num_replays += 1
                result.copy_(recorder.again(compute))

        return Recording(), result

    def again(self, compute):
        return compute()


class Counted(Recorder):
    """A recorder whose replays are not counted, as on a GPU's host."""

    def __init__(self, traffic):
        super().__init__()
        self._traffic = traffic

    def again(self, compute):
        before = self._traffic.totals()
        result = compute()
        self._traffic.add(TrafficTotals(0, 0, 0, 0) - (self._traffic.totals() - before))
        return result

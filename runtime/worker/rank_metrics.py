"""The metrics of one rank: its requests and KV cache, its steps, rows of experts and dispatch, KV transfers.

Counters live where the work is done, and are read at a scrape, so that a step pays nothing for them. Every metric has
the labels model_name, unit and rank. The gateway measures what users wait for (`gateway/telemetry/metrics.py`).
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from runtime.expert_parallel.epochs.switch import Switch
from runtime.kv.sender import SentBytes
from runtime.kv.tiers.loading import TierCounters
from runtime.launch import UnitLaunch
from runtime.model.deepseek import DeepseekV3
from runtime.serving.load_report import measure_load
from runtime.serving.scheduler import Scheduler
from runtime.worker.step_times import StepTimes

__all__ = ["RankMetrics"]

LABELS = ("model_name", "unit", "rank")


class RankMetrics:
    """The metrics of one rank. Its metrics port serves `registry`."""

    def __init__(self, launch: UnitLaunch, rank: int) -> None:
        self.registry = CollectorRegistry()
        self._labels = (launch.model.name, launch.unit, str(rank))
        kv_bytes = Counter(
            "tidemill_kv_transfer_bytes_total", "KV handed over to decode.", (*LABELS, "part"), registry=self.registry
        )
        self._kv_payload = kv_bytes.labels(*self._labels, "payload")
        self._kv_framing = kv_bytes.labels(*self._labels, "framing")
        self._kv_skipped = kv_bytes.labels(*self._labels, "skipped")
        self._kv_seconds = Histogram(
            "tidemill_kv_transfer_seconds", "Time of one request's transfer.", LABELS, registry=self.registry
        ).labels(*self._labels)
        self._kv_seconds_after_prompt = Histogram(
            "tidemill_kv_transfer_after_prompt_seconds", "Its part after the prompt.", LABELS, registry=self.registry
        ).labels(*self._labels)
        self._prompt_tokens = Counter(
            "tidemill_computed_prompt_tokens_total", "Prompt tokens computed here.", LABELS, registry=self.registry
        ).labels(*self._labels)
        self._attention_pairs = Counter(
            "tidemill_computed_attention_pairs_total",
            "Pairs of core attention of prompts, in one head of one layer.",
            LABELS,
            registry=self.registry,
        ).labels(*self._labels)

    def count_transfer(self, num_bytes: SentBytes, seconds: float, seconds_after_prompt: float) -> None:
        """Count one request's KV transfer, which a decode rank accepted.

        Both times end with the acceptance: `seconds` begins with the latents of the first layer, `seconds_after_prompt`
        with the end of the prompt's computation.
        """
        self._kv_payload.inc(num_bytes.payload)
        self._kv_framing.inc(num_bytes.framing)
        self._kv_skipped.inc(num_bytes.skipped)
        self._kv_seconds.observe(seconds)
        self._kv_seconds_after_prompt.observe(seconds_after_prompt)

    def count_prompts(self, num_tokens: int, num_pairs: int) -> None:
        """Count the prompt tokens that one step computed, and their pairs of core attention."""
        self._prompt_tokens.inc(num_tokens)
        self._attention_pairs.inc(num_pairs)

    def watch_requests(self, scheduler: Scheduler) -> None:
        """Show the rank's requests and its KV cache from now on."""
        self.registry.register(_SchedulerCounters(scheduler, self._labels))

    def watch_disk(self, counters: TierCounters) -> None:
        """Show the prefix cache's disk tier from now on."""
        self.registry.register(_DiskCounters(counters, self._labels))

    def watch_steps(self, times: StepTimes) -> None:
        """Show from now on how long the rank's steps take, and how much of that time it waits for its peers."""
        self.registry.register(_StepCounters(times, self._labels))

    def watch_switches(self, switch: Switch) -> None:
        """Show the unit's epoch and its switches from now on."""
        self.registry.register(_SwitchCounters(switch, self._labels))

    def watch(self, model: DeepseekV3) -> None:
        """Show the model's own counters from now on."""
        self.registry.register(_ModelCounters(model, self._labels))


class _SchedulerCounters:
    """Reads the lengths of the scheduler's queues and its use of KV pages at each scrape."""

    def __init__(self, scheduler: Scheduler, labels: tuple[str, ...]) -> None:
        self._scheduler = scheduler
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; the metrics server calls it."""
        scheduler, cache = self._scheduler, self._scheduler.cache
        load = measure_load(scheduler, [])
        for name, meaning, value in (
            ("rank_requests_running", "Requests in the KV cache.", len(scheduler.running)),
            ("rank_requests_waiting", "Requests outside the KV cache.", load.num_waiting),
            ("rank_prompt_tokens", "Prompt tokens that are not computed yet.", load.prompt_tokens),
            ("rank_attention_pairs", "Pairs of core attention that these will form.", load.attention_pairs),
            ("rank_kv_tokens", "Tokens of KV of all requests, in whole pages.", load.kv_tokens),
            ("kv_cache_usage_perc", "Pages in use, of 1.", 1 - cache.num_free_pages / cache.num_pages),
        ):
            gauge = GaugeMetricFamily(f"tidemill_{name}", meaning, labels=LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        preempted = CounterMetricFamily("tidemill_num_preemptions", "Times a request left the cache.", labels=LABELS)
        preempted.add_metric(self._labels, scheduler.num_preemptions)
        yield preempted
        held = GaugeMetricFamily("tidemill_kv_host_bytes", "Host memory of latents.", labels=(*LABELS, "holder"))
        for holder, num_bytes in cache.memory.reserved_bytes().items():
            held.add_metric((*self._labels, holder), num_bytes)
        yield held
        for name, meaning, tokens in (
            ("queries", "Tokens of prompts that were looked up.", scheduler.queried_tokens),
            ("hits", "Of these, tokens that were there.", scheduler.hit_tokens),
        ):
            counter = CounterMetricFamily(f"tidemill_prefix_cache_{name}", meaning, labels=(*LABELS, "tier"))
            for tier in scheduler.queried_tokens:
                counter.add_metric((*self._labels, tier), tokens[tier])
            yield counter


class _DiskCounters:
    """Reads a disk tier's counters at each scrape."""

    def __init__(self, counters: TierCounters, labels: tuple[str, ...]) -> None:
        self._counters, self._labels = counters, labels

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; the metrics server calls it."""
        done = self._counters
        moved = {"read": done.read_bytes, "written": done.written_bytes}
        for name, meaning, label, values in (
            ("bytes", "Of blocks, read and written.", "direction", moved),
            ("misses", "Loadings that ended before their last block.", "reason", dict(done.misses)),
            ("dropped", "Blocks that were worth writing and are not written.", "reason", dict(done.dropped)),
        ):
            counter = CounterMetricFamily(f"tidemill_prefix_cache_disk_{name}", meaning, labels=(*LABELS, label))
            for each, value in values.items():
                counter.add_metric((*self._labels, each), value)
            yield counter


class _StepCounters:
    """Reads the times of steps at each scrape."""

    def __init__(self, times: StepTimes, labels: tuple[str, ...]) -> None:
        self._times, self._labels = times, labels

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; the metrics server calls it."""
        steps = SummaryMetricFamily("tidemill_rank_step_seconds", "Steps of the unit.", labels=LABELS)
        steps.add_metric(self._labels, self._times.count, self._times.seconds)
        yield steps
        waits = CounterMetricFamily("tidemill_rank_wait_seconds", "Of steps, waiting for peers.", labels=LABELS)
        waits.add_metric(self._labels, self._times.waited_s)
        yield waits


class _ModelCounters:
    """Reads the counters of dispatch and experts at each scrape."""

    def __init__(self, model: DeepseekV3, labels: tuple[str, ...]) -> None:
        self._model = model
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; the metrics server calls it."""
        traffic, load = self._model.dispatcher.traffic, self._model.load
        sent = CounterMetricFamily("tidemill_dispatch_bytes", "Dispatched to other ranks.", labels=LABELS)
        sent.add_metric(self._labels, traffic.bytes_sent)
        yield sent
        crossed = CounterMetricFamily("tidemill_dispatch_node_bytes", "Dispatched to other nodes.", labels=LABELS)
        crossed.add_metric(self._labels, traffic.bytes_to_other_nodes)
        yield crossed
        for name, time in (("dispatch", traffic.dispatch), ("combine", traffic.combine)):
            taken = SummaryMetricFamily(
                f"tidemill_{name}_seconds", "From its beginning to the last row.", labels=LABELS
            )
            taken.add_metric(self._labels, time.count, time.seconds)
            yield taken
        imbalance = GaugeMetricFamily(
            "tidemill_expert_load_imbalance",
            "Most rows of this rank's tokens for one rank, over the mean.",
            labels=(*LABELS, "moe_layer"),
        )
        for layer, ratio in enumerate(load.imbalance().tolist()):
            imbalance.add_metric((*self._labels, str(layer)), ratio)
        yield imbalance
        rows = CounterMetricFamily(
            "tidemill_expert_rows", "Rows computed.", labels=(*LABELS, "moe_layer", "slot", "expert")
        )
        for layer, slot, expert, count in load.counted_rows():
            rows.add_metric((*self._labels, str(layer), str(slot), str(expert)), count)
        yield rows


class _SwitchCounters:
    """Reads the unit's epoch and its switches at each scrape."""

    def __init__(self, switch: Switch, labels: tuple[str, ...]) -> None:
        self._switch, self._labels = switch, labels

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; the metrics server calls it."""
        standing, totals = self._switch.standing, self._switch.totals
        epoch = GaugeMetricFamily("tidemill_expert_map_info", "The unit's epoch.", labels=(*LABELS, "epoch", "digest"))
        epoch.add_metric((*self._labels, str(standing.number), standing.digest), 1)
        yield epoch
        for name, meaning, value in (
            ("experts", "Experts that slots here got by switches.", totals.moves),
            ("bytes", "Received for these from other ranks.", totals.num_bytes),
            ("seconds", "From the beginning of each switch to its end.", totals.seconds),
            ("stall_seconds", "Of these, between steps.", totals.stall_s),
            ("undone", "Switches that led back to the epoch before.", totals.num_undone),
        ):
            counter = CounterMetricFamily(f"tidemill_expert_moves_{name}", meaning, labels=LABELS)
            counter.add_metric(self._labels, value)
            yield counter

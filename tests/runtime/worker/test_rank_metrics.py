"""A rank's metrics of requests and cache are read at each scrape."""

import pytest
import torch

from runtime.launch import Limits, read_unit_launch
from runtime.protocol.counting import PAGE_TOKENS, attention_pairs
from runtime.protocol.messages import Sampling
from runtime.serving.request import Request
from runtime.serving.scheduler import Scheduler
from runtime.worker.rank_metrics import RankMetrics
from tests.runtime.launch_documents import UNIT, seal, write
from tests.runtime.on_cpu import new_cache

LIMITS = Limits(max_requests=4, max_request_tokens=64, max_batch_tokens=64, kv_tokens=4 * PAGE_TOKENS)


@pytest.fixture
def scheduler(small_config):
    return Scheduler(new_cache(small_config, LIMITS.kv_tokens, torch.float32), LIMITS)


@pytest.fixture
def sample(scheduler, tmp_path):
    """Return a metric of a rank with this scheduler."""
    launch = read_unit_launch(write(tmp_path, seal(UNIT)))
    metrics = RankMetrics(launch, rank=1)
    metrics.watch_requests(scheduler)
    labels = {"model_name": launch.model.name, "unit": launch.unit, "rank": "1"}
    return lambda name: metrics.registry.get_sample_value(f"tidemill_{name}", labels)


def test_requests_pages_and_preemptions_are_shown(scheduler, sample):
    """The metrics show running and waiting requests, pages in use and preemptions."""
    requests = [Request(str(n), [1] * (PAGE_TOKENS + 1), Sampling(99, 0.0, 1.0, 0, [])) for n in range(3)]
    for request in requests:
        scheduler.add(request)

    assert (sample("rank_requests_running"), sample("rank_requests_waiting")) == (0, 3)
    assert sample("kv_cache_usage_perc") == 0
    scheduler.schedule()
    assert (sample("rank_requests_running"), sample("rank_requests_waiting")) == (2, 1)
    assert sample("kv_cache_usage_perc") == 1

    requests[0].generated = [1] * PAGE_TOKENS
    scheduler.schedule()
    assert (sample("rank_requests_running"), sample("rank_requests_waiting")) == (1, 2)
    assert sample("kv_cache_usage_perc") == 3 / 4
    assert sample("num_preemptions_total") == 1


def test_what_is_left_to_compute_and_all_kv_are_shown(scheduler, sample):
    """The metrics show the prompt tokens and attention pairs that are left, and all KV."""
    requests = [Request(str(n), [1] * (PAGE_TOKENS + 1), Sampling(99, 0.0, 1.0, 0, [])) for n in range(2)]
    for request in requests:
        scheduler.add(request)
    requests[0].num_cached = 60

    assert sample("rank_prompt_tokens") == 5 + 65
    assert sample("rank_attention_pairs") == 61 + 62 + 63 + 64 + 65 + attention_pairs(0, 65)
    assert sample("rank_kv_tokens") == 2 * 2 * PAGE_TOKENS

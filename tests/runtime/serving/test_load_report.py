"""A rank's load counts what its requests still need, and is sent when it changes."""

import torch

from runtime.launch import Limits
from runtime.protocol.counting import attention_pairs
from runtime.protocol.messages import Load, Sampling
from runtime.serving.load_report import LoadReport, measure_load
from runtime.serving.request import Request
from runtime.serving.scheduler import Scheduler
from tests.runtime.on_cpu import new_cache

LIMITS = Limits(max_requests=2, max_request_tokens=192, max_batch_tokens=50, kv_tokens=256)
GREEDY = Sampling(9, 0.0, 1.0, 0, [])


def new_scheduler(config, *prompt_tokens):
    scheduler = Scheduler(new_cache(config, LIMITS.kv_tokens, torch.float32), LIMITS)
    for number, length in enumerate(prompt_tokens):
        scheduler.add(Request(str(number), [5] * length, GREEDY))
    return scheduler


def test_a_load_counts_what_is_left_of_prompts_and_all_that_requests_hold(small_config):
    """A load counts the prompt tokens that are left, waiting requests, and every request's tokens in whole pages."""
    scheduler = new_scheduler(small_config, 70, 64, 65)
    batch = scheduler.schedule()
    batch.requests[0].num_cached = 50

    assert measure_load(scheduler, scheduler.take_arrived()) == Load(
        num_requests=3,
        num_waiting=1,
        prompt_tokens=20 + 64 + 65,
        attention_pairs=attention_pairs(50, 70) + attention_pairs(0, 64) + attention_pairs(0, 65),
        kv_tokens=128 + 64 + 128,
        arrived=["0", "1", "2"],
    )


def test_what_is_found_of_a_waiting_prompt_is_no_work(small_config):
    """Its first block was computed for another. The gateway, which sent both here, has counted it so as well."""
    scheduler = Scheduler(new_cache(small_config, LIMITS.kv_tokens), LIMITS)
    first, again = (Request(name, [5] * 70, GREEDY, block_root=b"root") for name in ("first", "again"))
    scheduler.add(first)
    while first.is_prefilling:
        for chunk in scheduler.schedule().prefilling:
            scheduler.advance(first, chunk.end)
    scheduler.add(again)
    load = measure_load(scheduler, [])

    assert (load.num_waiting, load.prompt_tokens, load.attention_pairs) == (1, 6, attention_pairs(64, 70))


def test_a_request_is_new_once(small_config):
    """A request is reported as new once, even if it has ended before the report."""
    scheduler = new_scheduler(small_config, 10)
    scheduler.abort("0")

    assert measure_load(scheduler, scheduler.take_arrived()) == Load(0, 0, 0, 0, 0, ["0"])
    assert scheduler.take_arrived() == []


def test_a_load_is_told_when_it_changed(small_config):
    """A load that has not changed is not sent again."""
    scheduler, told = new_scheduler(small_config), []
    report = LoadReport(scheduler, told.append)
    for _ in range(3):
        report.tell()
    scheduler.add(Request("a", [5] * 10, GREEDY))
    for _ in range(3):
        report.tell()

    assert told == [Load(0, 0, 0, 0, 0, []), Load(1, 1, 10, 55, 64, ["a"]), Load(1, 1, 10, 55, 64, [])]

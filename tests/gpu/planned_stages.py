"""What the planner predicts for the stages of one rank's step, without links and of ranks that are equally full."""

from dataclasses import replace

from planner.estimate.case import build_case
from planner.estimate.throughput.point import OperatingPoint
from planner.estimate.throughput.stages import (
    Exchange,
    decode_spans,
    dense_decode_spans,
    dense_prompt_spans,
    prompt_spans,
)
from runtime.expert_parallel.overlap import OVERLAPS

__all__ = ["planned_stages"]

LINK = ("dispatch", "combine")


def planned_stages(deployment, prefilling, decoding):
    """Return the seconds of each stage in a whole step, of all layers, of prompts or of requests that decode."""
    case = build_case(deployment.spec, deployment.layout, OperatingPoint(), Exchange(0, 0))
    moe_layer = next(layer for layer in case.model.layers if layer.expert is not None)
    dense_layer = next(layer for layer in case.model.layers if layer.dense is not None)
    alone = replace(case.setup, overlap="none")
    shares = OVERLAPS[deployment.unit.overlap].shares(sum(len(chunk.token_ids) for chunk in (*prefilling, *decoding)))
    tokens = max(shares)
    if decoding:
        kv = decoding[0].end
        moe = decode_spans(alone, moe_layer, tokens, kv)
        dense = dense_decode_spans(alone, dense_layer, tokens, kv)
    else:
        size = len(prefilling[0].token_ids)
        context = prefilling[0].end - size / 2
        moe = prompt_spans(alone, moe_layer, tokens, context, size)
        dense = dense_prompt_spans(alone, dense_layer, tokens, context, size)
    config = deployment.config
    layers = ((moe, config.num_moe_layers), (dense, config.first_k_dense_replace))
    found = {}
    for spans, number in layers:
        for name, seconds in spans.items():
            if name.startswith(LINK):
                continue
            found[name] = found.get(name, 0.0) + float(seconds) * number * len(shares)
    return found

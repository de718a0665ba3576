"""The gate follows DeepSeek's published rules for V3 and V2, written here in plain Python.

Sources: deepseek-ai/DeepSeek-V3 `inference/model.py`, class Gate; DeepSeek-V2 `modeling_deepseek.py`, class MoEGate.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.model.moe import Gate
from tests.runtime.on_cpu import backend


@st.composite
def gates(draw):
    """Draw (changes of the config, seed)."""
    groups = draw(st.sampled_from([1, 2, 4, 8]))
    experts_per_group = draw(st.integers(2, 6))
    topk_group = draw(st.integers(1, groups))
    scoring = draw(st.sampled_from([("sigmoid", "noaux_tc"), ("softmax", "group_limited_greedy")]))
    changes = {
        "scoring_func": scoring[0],
        "topk_method": scoring[1],
        "n_group": groups,
        "topk_group": topk_group,
        "n_routed_experts": groups * experts_per_group,
        "num_experts_per_tok": draw(st.integers(1, min(6, topk_group * experts_per_group))),
        "norm_topk_prob": draw(st.booleans()),
        "routed_scaling_factor": draw(st.sampled_from([1.0, 2.5])),
    }
    return changes, draw(st.integers(0, 2**16))


def make_gate(config, filled, seed):
    return filled(Gate(config, backend()), seed)


def tokens(config, seed, count=5):
    return torch.randn(count, config.hidden_size, generator=torch.Generator().manual_seed(seed))


def reference(config, weight, bias, x):
    """Return logical expert -> weight of one token. V2 has no bias and judges a group by its best score."""
    logits = [sum(w * v for w, v in zip(row, x, strict=True)) for row in weight]
    if config.scoring_func == "sigmoid":
        scores = [1 / (1 + math.exp(-logit)) for logit in logits]
    else:
        scores = [math.exp(logit) / sum(map(math.exp, logits)) for logit in logits]
    biased = [score + b for score, b in zip(scores, bias or [0.0] * len(scores), strict=True)]
    num_best = 2 if config.topk_method == "noaux_tc" else 1
    size = config.n_routed_experts // config.n_group
    members = [range(group * size, (group + 1) * size) for group in range(config.n_group)]
    worth = [sum(sorted(biased[expert] for expert in group)[-num_best:]) for group in members]
    best_groups = sorted(range(config.n_group), key=lambda group: -worth[group])[: config.topk_group]
    eligible = [expert for group in best_groups for expert in members[group]]
    chosen = sorted(eligible, key=lambda expert: -biased[expert])[: config.num_experts_per_tok]
    total = sum(scores[expert] for expert in chosen) if config.norm_topk_prob else 1.0
    return {expert: scores[expert] / total * config.routed_scaling_factor for expert in chosen}


@given(drawn=gates())
def test_gate_equals_the_published_rules(small_config, filled, drawn):
    """Experts and weights equal the slow reference, for any scores, groups, top-k, normalisation and scale."""
    changes, seed = drawn
    config = replace(small_config, **changes)
    gate, x = make_gate(config, filled, seed), tokens(config, seed + 1)
    bias = gate.e_score_correction_bias.tolist() if config.topk_method == "noaux_tc" else None
    with torch.inference_mode():
        experts, weights = gate(x)

    for token, chosen, weighed in zip(x.tolist(), experts.tolist(), weights.tolist(), strict=True):
        expected = reference(config, gate.weight.tolist(), bias, token)
        assert dict(zip(chosen, weighed, strict=True)) == pytest.approx(expected, rel=1e-4)


def test_bias_chooses_but_does_not_weigh(small_config, filled):
    """A large bias brings an expert into every choice, and its weight is still its own score's share."""
    gate, x = make_gate(small_config, filled, 3), tokens(small_config, 4, count=20)
    with torch.inference_mode():
        gate.e_score_correction_bias.zero_()
        gate.e_score_correction_bias[5] = 10
        experts, weights = gate(x)
        scores = (x @ gate.weight.T).sigmoid().gather(1, experts)

    assert (experts == 5).any(1).all()
    torch.testing.assert_close(weights, 2.5 * scores / scores.sum(1, keepdim=True))


def test_only_the_best_groups_are_eligible(small_config, filled):
    """Four chosen experts come from two of four groups, however good the best of another group is."""
    config = replace(small_config, num_experts_per_tok=4)
    with torch.inference_mode():
        experts, _ = make_gate(config, filled, 5)(tokens(config, 6, count=50))
    groups = experts // (config.n_routed_experts // config.n_group)

    assert all(len(set(row)) == config.topk_group for row in groups.tolist())


def test_weights_are_fp32_whatever_the_model_is(small_config, filled):
    """The weights of a BF16 model's experts are FP32."""
    gate = filled(Gate(small_config, backend(torch.bfloat16)), 0)
    with torch.inference_mode():
        _, weights = gate(tokens(small_config, 1).bfloat16())

    assert weights.dtype == torch.float32

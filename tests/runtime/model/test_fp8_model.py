"""What FP8 does to the demo model: which matrices are in it, how far logits move, how often the best token changes.

Three texts: held-out documentation, where many tokens are nearly as likely as the best one; FP32's own greedy text,
where it is surer; and FP32's own answers to questions that the model was trained to answer, where it should know what
it says. BF16 without FP8 is measured beside it, because BF16 is what FP8 is computed among.
The weights lie on e4m3's grid, so that FP8 takes nothing from them. What remains of the error is that of activations: a
code is up to 1/16 of its power of two off, which is 2.4 to 2.7 % of a tensor whose values are spread as theirs are; the
layers add their errors as independent ones do, and where they change the best token, so does noise of their size.
`pytest -s` on this file prints all figures.
"""

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from runtime.expert_parallel.group import SoloGroup
from runtime.gateway.tokenizer import load_tokenizer
from runtime.kernels.fp8 import BLOCK, E4M3, Quantised, dequantise_matrix, quantise_rows
from runtime.model.engine import Engine, EngineConfig
from runtime.model.fp8 import Fp8Linear
from runtime.offline import greedy

PIECES, PIECE_TOKENS = 8, 256
NUM_PROMPTS, MAX_TOKENS = 24, 32
EVERY_QUESTION, MAX_ANSWER_TOKENS = 12, 64  # by the order of the list, whatever the model makes of them
AGREEMENT = {"held-out": 0.94, "greedy": 0.94, "answers": 0.99}  # of the best token at all positions, at least
DECIDED = 0.5  # where FP32's two best logits are further apart than this, it has decided
ROUNDING = 0.027  # of a tensor by e4m3, as a part of its norm; a second rounding or a wrong scale would be seen
EOS = 1
WIDE = ("_layernorm.weight", "norm.weight", "embed_tokens.weight", "lm_head.weight", "gate.weight", "kv_b_proj.weight")


def off_by(found, expected):
    """The error as a part of what is expected."""
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()


def engine(folder, config, dtype):
    return Engine(
        EngineConfig(folder, [list(range(config.n_routed_experts))] * config.num_moe_layers, dtype), SoloGroup()
    )


@pytest.fixture(scope="module")
def engines(demo, demo_config):
    """By type of their matrices."""
    return {dtype: engine(demo, demo_config, dtype) for dtype in (torch.float32, torch.bfloat16, E4M3)}


@pytest.fixture(scope="module")
def held_out(demo):
    """Pieces of the text that travels with the model."""
    text = (demo / "heldout.txt").read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(demo / "tokenizer.json")).encode(text).ids
    return [ids[start : start + PIECE_TOKENS] for start in range(0, PIECES * PIECE_TOKENS, PIECE_TOKENS)]


@pytest.fixture(scope="module")
def questions(demo):
    """Token ids of questions through the chat template, up to where the answer begins."""
    tokenizer = load_tokenizer(demo)
    asked = list(json.loads((demo / "answers.json").read_text(encoding="utf-8")))[::EVERY_QUESTION]
    return [tokenizer.encode_chat([{"role": "user", "content": question}]) for question in asked]


@pytest.fixture(scope="module")
def measured(engines, held_out, prompts, questions):
    """Text -> type -> logits of all positions, each position's next token being of that text."""
    own = {
        "greedy": continued(engines[torch.float32], prompts[:NUM_PROMPTS], MAX_TOKENS),
        "answers": continued(engines[torch.float32], questions, MAX_ANSWER_TOKENS),
    }

    def logits(engine, text):
        if text == "held-out":
            return torch.cat(engine.prompt_logits(held_out))
        whole, first = own[text]
        return torch.cat([logits[start:-1] for logits, start in zip(engine.prompt_logits(whole), first, strict=True)])

    return {text: {dtype: logits(engine, text) for dtype, engine in engines.items()} for text in AGREEMENT}


def continued(engine, prompts, max_tokens):
    """(prompts with their greedy continuations, where each one's first new token is predicted)."""
    outputs = greedy(engine, SoloGroup(), prompts, max_tokens, {EOS})
    whole = [prompt + output for prompt, output in zip(prompts, outputs, strict=True)]
    return whole, [len(prompt) - 1 for prompt in prompts]


def test_exactly_the_published_matrices_are_in_fp8(engines):
    """Projections and experts, but not kv_b_proj; all that DeepSeek leaves in BF16 is in BF16, scales are FP32."""
    for name, parameter in engines[E4M3].model.named_parameters():
        if "scale" in name or name.endswith("e_score_correction_bias"):
            assert parameter.dtype == torch.float32
        elif name.endswith(WIDE):
            assert parameter.dtype == torch.bfloat16
        else:
            assert parameter.dtype == E4M3
    assert engines[E4M3].prefill([[5, 6]])[1][0].dtype == torch.bfloat16


def test_no_matrix_loses_anything_and_no_activation_more_than_the_format_rounds(engines, held_out):
    """The weights are stored on e4m3's grid; what enters a projection loses one rounding to e4m3, and no second one."""
    wide = dict(engines[torch.float32].model.named_modules())
    losses, taken = {}, []
    for name, module in engines[E4M3].model.named_modules():
        if isinstance(module, Fp8Linear):
            stored = dequantise_matrix(Quantised(module.weight, module.weight_scale_inv))
            assert torch.equal(stored, wide[name].weight), name
            taken.append(module.register_forward_pre_hook(partial(keep_loss, losses, name)))
    engines[E4M3].prompt_logits(held_out[:1])
    for hook in taken:
        hook.remove()
    print(f"e4m3 rounds activations by {min(losses.values()):.2%} to {max(losses.values()):.2%} of their norm")

    assert len(losses) == len(taken) > 0
    assert max(losses.values()) < ROUNDING


def keep_loss(losses, name, _module, arguments):
    """What a projection's rows lose when it quantises them."""
    rows = quantise_rows(arguments[0])
    losses[name] = off_by(dequantised_rows(rows), arguments[0])


def dequantised_rows(rows):
    return rows.codes.float() * rows.scales.repeat_interleave(BLOCK, 1)[:, : rows.codes.shape[1]]


@pytest.mark.parametrize(("text", "min_agreement"), AGREEMENT.items())
def test_the_best_token_stays_where_it_is_decided(measured, text, min_agreement):
    """FP8's best token is FP32's in 99 % of all positions of answers, elsewhere in 99 % of those FP32 has decided."""
    expected = measured[text][torch.float32]
    best = expected.topk(2).values
    is_decided = best[:, 0] - best[:, 1] > DECIDED
    for dtype in (torch.bfloat16, E4M3):
        found = measured[text][dtype]
        agrees = found.argmax(-1) == expected.argmax(-1)
        error = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
        print(
            f"{text}, {str(dtype).removeprefix('torch.')} against FP32: error of logits {error.mean():.2%} (mean),"
            f" {error.max():.2%} (worst position); same best token {agrees.float().mean():.2%} of {len(agrees)},"
            f" {agrees[is_decided].float().mean():.2%} of the {is_decided.float().mean():.0%} decided"
        )

    assert agrees[is_decided].float().mean() >= 0.99
    assert agrees.float().mean() >= min_agreement
    assert error.mean() < 0.06


@pytest.mark.parametrize("text", AGREEMENT)
def test_the_best_token_moves_as_under_noise_of_the_same_size(measured, text):
    """FP8's errors are no worse than random ones: how near the two best logits lie decides how often."""
    expected, found = measured[text][torch.float32], measured[text][E4M3]
    spread = (found - expected).std(-1, keepdim=True)
    noise = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0)) * spread
    best = expected.topk(2).values
    kept, kept_by_noise = (
        (logits.argmax(-1) == expected.argmax(-1)).float().mean() for logits in (found, expected + noise)
    )
    print(
        f"{text}: FP8's error of a logit has a deviation of {spread.mean():.2f}, and the two best are nearer than 0.2"
        f" at {(best[:, 0] - best[:, 1] < 0.2).float().mean():.1%} of the positions;"
        f" same best token {kept:.2%}, under noise {kept_by_noise:.2%}"
    )

    assert kept > kept_by_noise - 0.01


def test_the_text_is_predicted_as_well(measured, held_out):
    """The held-out text's next token costs within 1 % of the bits that it costs in FP32."""
    targets = torch.tensor([token for piece in held_out for token in piece[1:]])
    nats = {
        dtype: F.cross_entropy(logits.unflatten(0, (PIECES, PIECE_TOKENS))[:, :-1].flatten(0, 1), targets).item()
        for dtype, logits in measured["held-out"].items()
    }
    print(", ".join(f"{str(dtype).removeprefix('torch.')} {loss:.4f} nats a token" for dtype, loss in nats.items()))

    assert nats[E4M3] == pytest.approx(nats[torch.float32], rel=0.01)

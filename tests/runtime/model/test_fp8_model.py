"""FP8 changes the demo model's logits and best tokens only as much as its rounding explains.

Three texts: held-out documentation, where many tokens are nearly as likely as the best one; FP32's own greedy text,
where it is surer; and FP32's own answers to questions that the model was trained to answer, where it should know what
it says. BF16 without FP8 is held to limits of its own beside it, because BF16 is what FP8 is computed among.
The weights lie on e4m3's grid, so that FP8 takes nothing from them. What remains of the error is that of activations: a
code is up to 1/16 of its power of two off, which is 2.4 to 2.7 % of a tensor whose values are spread as theirs are.
What that does to logits is computed apart from our FP8: by an FP32 model that rounds the same rows (`rounded_ops.py`).
Its error and BF16's, which are independent, make FP8's. Errors are medians over the positions: where an error changes a
token's experts, its size says nothing about the kernels. `pytest -s` on this file prints all figures.
"""

import json
import math
from functools import cache, partial

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from runtime.expert_parallel.group import SoloGroup
from runtime.gateway.core.tokenizer import load_tokenizer
from runtime.kernels.fp8 import BLOCK, E4M3, Quantised, dequantise_matrix
from runtime.model.engine import Engine, EngineConfig
from runtime.model.fp8 import Fp8Linear
from runtime.offline import greedy
from tests.runtime import fp8_reference
from tests.runtime.closeness import error_in_norm, median_row_error
from tests.runtime.rounded_ops import round_codes, round_rows

PIECES, PIECE_TOKENS = 8, 256
NUM_PROMPTS, MAX_TOKENS = 24, 32
EVERY_QUESTION, MAX_ANSWER_TOKENS = 12, 64  # by the order of the list, whatever the model makes of them
ROUNDED = "FP32 with rounded rows"
# Of the best token at all positions, at least.
AGREEMENT = {
    torch.bfloat16: {"held-out": 0.975, "greedy": 0.975, "answers": 0.998},
    E4M3: {"held-out": 0.94, "greedy": 0.94, "answers": 0.99},
}
DECIDED_AGREEMENT = {torch.bfloat16: 0.998, E4M3: 0.99}
DECIDED = 0.5  # where FP32's two best logits are further apart than this, it has decided
OF_PREDICTED = 0.08  # by how much FP8's error may miss what rounded rows and BF16 make of it
BF16_OF_ROUNDED = 0.3  # of the error of rounded rows; BF16 rounds 32 times as finely, and in more places
ROUNDING = 0.027  # of a tensor by e4m3, as a part of its norm; a second rounding or a wrong scale would be seen
EOS = 1
WIDE = ("_layernorm.weight", "norm.weight", "embed_tokens.weight", "lm_head.weight", "gate.weight", "kv_b_proj.weight")


each_text = pytest.mark.parametrize(
    "text", ["held-out", *(pytest.param(each, marks=pytest.mark.whole) for each in ("greedy", "answers"))]
)


def engine(folder, config, dtype):
    return Engine(
        EngineConfig(folder, [list(range(config.n_routed_experts))] * config.num_moe_layers, dtype), SoloGroup()
    )


@pytest.fixture(scope="module")
def engines(demo, demo_config):
    """Return engines by the type of their matrices, and the slow reference of FP8's rounding."""
    found = {dtype: engine(demo, demo_config, dtype) for dtype in (torch.float32, torch.bfloat16, E4M3)}
    found[ROUNDED] = engine(demo, demo_config, torch.float32)
    round_rows(found[ROUNDED].model)
    return found


@pytest.fixture(scope="module")
def held_out_texts(demo):
    """Return pieces of the text that is bundled with the model."""
    text = (demo / "heldout.txt").read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(demo / "tokenizer.json")).encode(text).ids
    return [ids[start : start + PIECE_TOKENS] for start in range(0, PIECES * PIECE_TOKENS, PIECE_TOKENS)]


@pytest.fixture(scope="module")
def questions(demo):
    """Return token ids of questions in the chat template, up to the answer."""
    tokenizer = load_tokenizer(demo)
    asked = list(json.loads((demo / "answers.json").read_text(encoding="utf-8")))[::EVERY_QUESTION]
    chats = [[{"role": "user", "content": question}] for question in asked]
    return [tokenizer.encode_whole(tokenizer.chat_template.render(chat, None, {})) for chat in chats]


@pytest.fixture(scope="module")
def measure_loss(engines, held_out_texts, prompts, questions):
    """Return a function of a text: the logits of its positions by type, and the tokens that follow them."""
    beginnings = {"greedy": (prompts[:NUM_PROMPTS], MAX_TOKENS), "answers": (questions, MAX_ANSWER_TOKENS)}

    def logits(engine, whole, first):
        return torch.cat([logits[start:-1] for logits, start in zip(engine.prompt_logits(whole), first, strict=True)])

    @cache
    def of_text(text):
        if text == "held-out":
            return {kind: torch.cat(engine.prompt_logits(held_out_texts)) for kind, engine in engines.items()}
        whole, first = continue_greedily(engines[torch.float32], *beginnings[text])
        return {kind: logits(engine, whole, first) for kind, engine in engines.items()}

    return of_text


def continue_greedily(engine, prompts, max_tokens):
    """Return prompts with their greedy continuations, and the position that predicts each one's first new token."""
    outputs = greedy(engine, SoloGroup(), prompts, max_tokens, {EOS})
    whole = [prompt + output for prompt, output in zip(prompts, outputs, strict=True)]
    return whole, [len(prompt) - 1 for prompt in prompts]


def test_exactly_the_published_matrices_are_in_fp8(engines):
    """Projections and experts except kv_b_proj are FP8; everything that DeepSeek keeps in BF16 is BF16."""
    for name, parameter in engines[E4M3].model.named_parameters():
        if "scale" in name or name.endswith("e_score_correction_bias"):
            assert parameter.dtype == torch.float32
        elif name.endswith(WIDE):
            assert parameter.dtype == torch.bfloat16
        else:
            assert parameter.dtype == E4M3
    assert engines[E4M3].prefill([[5, 6]])[1][0].dtype == torch.bfloat16


def test_no_matrix_loses_anything_and_no_activation_more_than_the_format_rounds(engines, held_out_texts, monkeypatch):
    """The weights lose nothing, and a projection's input is rounded to e4m3 once."""
    wide = dict(engines[torch.float32].model.named_modules())
    losses, quantising = {}, set()
    for name, module in engines[E4M3].model.named_modules():
        if isinstance(module, Fp8Linear):
            stored = dequantise_matrix(Quantised(module.weight, module.weight_scale_inv))
            assert torch.equal(stored, wide[name].weight), name
            monkeypatch.setattr(module, "quantise", partial(keep_loss, losses, name, module.quantise))
            if not name.endswith("up_proj"):  # it reads the rows of the gate beside it
                quantising.add(name)
    engines[E4M3].prompt_logits(held_out_texts[:1])
    print(f"e4m3 rounds activations by {min(losses.values()):.2%} to {max(losses.values()):.2%} of their norm")

    assert losses.keys() == quantising
    assert max(losses.values()) < ROUNDING


def keep_loss(losses, name, quantise, x_RD):
    """Record the error when projections quantise their rows."""
    rows = quantise(x_RD)
    losses[name] = error_in_norm(dequantise_rows(rows), x_RD)
    return rows


def dequantise_rows(rows):
    return rows.codes.float() * rows.scales.repeat_interleave(BLOCK, 1)[:, : rows.codes.shape[1]]


@each_text
@pytest.mark.parametrize("dtype", AGREEMENT, ids=str)
def test_the_best_token_stays_where_it_is_decided(measure_loss, dtype, text):
    """FP8 keeps FP32's best token at 99 % of answers' positions, and elsewhere at 99 % of the decided ones."""
    expected, found = measure_loss(text)[torch.float32], measure_loss(text)[dtype]
    best = expected.topk(2).values
    is_decided = best[:, 0] - best[:, 1] > DECIDED
    agrees = found.argmax(-1) == expected.argmax(-1)
    print(
        f"{text}, {str(dtype).removeprefix('torch.')} against FP32: same best token {agrees.float().mean():.2%} of"
        f" {len(agrees)}, {agrees[is_decided].float().mean():.2%} of the {is_decided.float().mean():.0%} decided"
    )

    assert agrees[is_decided].float().mean() >= DECIDED_AGREEMENT[dtype]
    assert agrees.float().mean() >= AGREEMENT[dtype][text]


@each_text
def test_logits_are_off_by_what_the_formats_round(measure_loss, text):
    """FP8's errors in logits are those of rounded rows and BF16 together; BF16's are far smaller."""
    expected = measure_loss(text)[torch.float32]
    rounded, bf16, fp8 = (
        median_row_error(measure_loss(text)[kind], expected) for kind in (ROUNDED, torch.bfloat16, E4M3)
    )
    predicted = math.hypot(rounded, bf16)
    print(f"{text}: rounded rows {rounded:.2%} off, BF16 {bf16:.2%}, so FP8 {predicted:.2%}, and it is {fp8:.2%}")

    assert fp8 == pytest.approx(predicted, rel=OF_PREDICTED)
    assert bf16 < BF16_OF_ROUNDED * rounded


@each_text
def test_the_best_token_moves_as_under_rounding_alone(measure_loss, text):
    """FP8 keeps the best token as often as rounded rows do, within 1 %."""
    expected = measure_loss(text)[torch.float32].argmax(-1)
    kept, kept_by_rounding = (
        (measure_loss(text)[kind].argmax(-1) == expected).float().mean().item() for kind in (E4M3, ROUNDED)
    )
    print(f"{text}: same best token {kept:.2%}, with rounded rows {kept_by_rounding:.2%}")

    assert kept > kept_by_rounding - 0.01


def test_the_text_is_predicted_as_well(measure_loss, held_out_texts):
    """A token of the held-out text costs within 1 % of its bits in FP32."""
    targets = torch.tensor([token for piece in held_out_texts for token in piece[1:]])
    nats = {
        dtype: F.cross_entropy(logits.unflatten(0, (PIECES, PIECE_TOKENS))[:, :-1].flatten(0, 1), targets).item()
        for dtype, logits in measure_loss("held-out").items()
    }
    print(", ".join(f"{str(dtype).removeprefix('torch.')} {loss:.4f} nats a token" for dtype, loss in nats.items()))

    assert nats[E4M3] == pytest.approx(nats[torch.float32], rel=0.01)
    assert nats[torch.bfloat16] == pytest.approx(nats[torch.float32], rel=0.002)


def test_the_rounding_of_the_reference_is_the_formats():
    """The reference rounds rows of every magnitude as the format does, number by number."""
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(0)) * 10 ** torch.arange(-7.0, 8, 3)[:, None]
    codes, scales = fp8_reference.quantise_rows(x.tolist())
    values = [
        [fp8_reference.code_value(code) * scales[n][k // BLOCK] for k, code in enumerate(row)]
        for n, row in enumerate(codes)
    ]

    assert round_codes(x).equal(torch.tensor(values))

"""Judges whether two computations of one model agree: logits within a tolerance, tokens except close calls."""

CLOSE_CALL = 1e-3  # where transformers' two best logits are nearer than this, either may win
LOGITS_TOLERANCE = 1e-4  # of the largest logit of the position


def count_undecided(prompts, expected, found, transformers_logits):
    """Count outputs that differ where transformers' two best tokens are close. Any other difference fails."""
    excuses = 0
    for prompt, one, other, logits in zip(prompts, expected, found, transformers_logits, strict=True):
        if one != other:
            at = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
            assert at is not None, "one output goes on where the other ends"
            best, second = logits[len(prompt) - 1 + at].topk(2).values.tolist()
            assert best - second < CLOSE_CALL, f"token {at}: {one[at]} and {other[at]}, margin {best - second:.2g}"
            excuses += 1
    print(f"{excuses} differences, all at close calls")
    return excuses


def transformers_choices(prompts, outputs, transformers_logits):
    """Return transformers' most likely token at every position of every output."""
    return [
        logits.argmax(-1)[len(prompt) - 1 : len(prompt) - 1 + len(output)].tolist()
        for prompt, output, logits in zip(prompts, outputs, transformers_logits, strict=True)
    ]


def error_in_norm(found, expected):
    """Return the norm of the error over that of the expected values; single rounded numbers say little."""
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def median_row_error(found, expected):
    """Return the median row's error in norm: where rounding changes a token's experts, its row says little."""
    found, expected = found.double(), expected.double()
    return ((found - expected).norm(dim=-1) / expected.norm(dim=-1)).median().item()


def relative_error(ours, theirs):
    """Return the largest difference at any position over that position's largest logit."""
    assert ours.shape == theirs.shape
    return ((ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)).max().item()

"""The colours of a plan's figures, on the page and in pictures.

After Okabe and Ito: told apart by all kinds of sight. Words stand beside each.
"""

from collections.abc import Mapping

# name of a CSS variable -> (its colour in light, in dark)
THEME: Mapping[str, tuple[str, str]] = {
    "ink": ("#1b1f24", "#e6edf3"),
    "soft": ("#57606a", "#a3adb8"),
    "paper": ("#fff", "#0d1117"),
    "card": ("#f6f8fa", "#161b22"),
    "edge": ("#d0d7de", "#30363d"),
    "link": ("#0550ae", "#79c0ff"),
    "bad": ("#b3261e", "#ff8a80"),
    "grid": ("#d0d7de", "#30363d"),
    "bound": ("#57606a", "#a3adb8"),
    "published": ("#b3261e", "#ff8a80"),
    "before": ("#6f42c1", "#c9a6ff"),
    "variant0": ("#0067a5", "#7cc4f0"),
    "variant1": ("#a94700", "#f2b04c"),
    "variant2": ("#00694d", "#6fd0b0"),
    "variant3": ("#6f42c1", "#c9a6ff"),
    "slowest": ("#a94700", "#f2b04c"),
    "fastest": ("#00694d", "#6fd0b0"),
    "range": ("#56b4e9", "#1f6fb2"),
    "prefill": ("#7cc4f0", "#0067a5"),
    "decode": ("#f2b04c", "#a94700"),
    "mixed": ("#6fd0b0", "#00694d"),
}

# kind of a node, segment, area, mark or line -> its colour
KINDS: Mapping[str, str] = {
    "prefill": "#0067a5",
    "prefill shade1": "#7cc4f0",
    "decode": "#a94700",
    "decode shade1": "#f2b04c",
    "mixed": "#00694d",
    "mixed shade1": "#6fd0b0",
    "unit prefill": "var(--prefill)",
    "unit decode": "var(--decode)",
    "unit mixed": "var(--mixed)",
    "load prefill": "var(--prefill)",
    "load decode": "var(--decode)",
    "load mixed": "var(--mixed)",
    "spare": "#6e7781",
    "spares": "#6e7781",
    "idle": "var(--paper)",
    "unusable": "var(--edge)",
    "weights_bytes": "#0067a5",
    "experts": "#0067a5",
    "activation_bytes": "#e69f00",
    "attention": "#e69f00",
    "buffer_bytes": "#cc79a7",
    "dispatch": "#cc79a7",
    "reserve_bytes": "#8c959f",
    "gate": "#8c959f",
    "kv_bytes": "#009e73",
    "combine": "#009e73",
    "shared": "#56b4e9",
    "issue": "#f0e442",
    "range": "var(--range)",
    "link": "#0067a5",
    "mid": "var(--ink)",
    "promise": "var(--bad)",
    "beyond": "var(--bad)",
}


def on_paper(kind: str) -> str:
    """Return the colour of a kind, or of a variable, on a light background."""
    colour = KINDS.get(kind, f"var(--{kind})")
    return THEME[colour[len("var(--") : -1]][0] if colour.startswith("var(") else colour

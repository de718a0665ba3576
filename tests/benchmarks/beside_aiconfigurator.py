"""Our predictions and our search beside AIConfigurator's, asked the same questions.

    python -m venv VENV && VENV/bin/pip install aiconfigurator==0.12.0      (850 MB; it needs no GPU)
    python -m tests.benchmarks.beside_aiconfigurator VENV/bin/aiconfigurator [--write]

Published rows are asked of both, the nearest that AIConfigurator can express: H100 for H800, powers of two for other EP
sizes, one batch where two overlap. It has no H20 and no AMD GPU. Our own error is that of the board, without what the
row's source gave its engine (`tidemill accuracy`). Both search for the best layout of one load: AIConfigurator by `cli
default`, we by planning mixed units, and both phases apart with each overlap. `--write` puts the tables into
docs/performance.md.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.accuracy.board import Line, make_board
from planner.accuracy.predicted import Predicted
from planner.accuracy.rows import published_rows
from planner.candidate.trial import speed_of, trial_of
from planner.estimate.throughput.predict import Case
from planner.estimate.throughput.replicas import ReplicaBalance
from planner.rules.check import check_document
from planner.spec.yaml import parse_document
from tests.benchmarks.aiconfigurator_cli import Answer, Run, estimate, run, search

ROOT = Path(__file__).parents[2]
PAGE, TITLE = ROOT / "docs" / "performance.md", "## Beside AIConfigurator"
ISL, OSL, TTFT_MS, TPOT_MS = 4000, 1000, 2000, 50
KV = ISL + OSL // 2
GPUS = (32, 176)
FREE = dict.fromkeys(("ep_size", "attention_tp", "redundant_experts", "units", "max_batch_tokens"), "auto")
COMMON = {"max_request_tokens": ISL + OSL, "precision": "fp8", "kv_precision": "fp8"}
POINTS = {
    "prefill": {"step_tokens": "auto", "prompt_tokens": ISL},
    "decode": {"requests": "auto", "kv_tokens": KV},
    "mixed": {"requests": "auto", "kv_tokens": KV, "prompt_tokens": ISL},
}
TOKENS = {"prefill": ISL / OSL, "decode": 1.0, "mixed": 1.0}  # of a phase, for one of output
OVERLAPS = (("dual_batch", "five_stage"), ("dual_batch", "none"), ("none", "none"))


# GPU -> the system of AIConfigurator that is nearest
SYSTEMS_OF = {
    "h100": "h100_sxm",
    "h800": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "gb200": "gb200",
    "b300": "b300_sxm",
    "gb300": "gb300",
}

INTRODUCTION = """`python -m tests.benchmarks.beside_aiconfigurator VENV/bin/aiconfigurator --write` writes this.
AIConfigurator is 0.12.0, asked for SGLang and the nearest that it can express: it has no H800, H20 or AMD GPU, powers
of two for EP, no NVFP4 beside large EP, no two batches that overlap, FP8 KV, and routing as skewed as its own model
has it. Predicted over published, less 1; ours is without the constants that the row's own source gave its engine.
The searches ask for DeepSeek-V3 on prompts of 4,000 tokens and answers of 1,000, TTFT 2,000 ms, TPOT 50 ms, KV in FP8.
Our TTFT counts a prompt's wait for its turn; AIConfigurator's is that of a prompt which never waits.
"""


@dataclass(frozen=True)
class Layout:
    """One phase of a layout that either tool has chosen."""

    phase: str
    ep_size: int
    attention_tp: int
    redundant: int
    requests: int  # of an attention group; in prefill prompts of a step
    overlap: str
    units: int
    said: float | None = None  # tokens/s a GPU, by the search of AIConfigurator that chose it

    @property
    def words(self) -> str:
        """Return it as tables have it."""
        slots = f" +{self.redundant}" if self.redundant else ""
        overlap = f", {self.overlap}" if self.overlap != "none" else ""
        load = "prompts a step" if self.phase == "prefill" else "requests"
        return f"{self.phase} EP{self.ep_size} TP{self.attention_tp}{slots}, {self.requests} {load}{overlap}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("executable")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    page = "\n".join([INTRODUCTION, *rows_table(given.executable), "", *searches_tables(given.executable)])
    print(page)
    if given.write:
        write(page)
    return 0


def write(page: str) -> None:
    """Put `page` below its title in docs/performance.md, up to the next title."""
    before, _, after = PAGE.read_text().partition(f"{TITLE}\n")
    _, mark, rest = after.partition("\n## ")
    PAGE.write_text(f"{before}{TITLE}\n\n{page}\n{mark}{rest}")


def rows_table(executable: str) -> Iterator[str]:
    """Yield the published rows of DeepSeek's models with both tools' errors."""
    rows = {(each.row.source, each.row.name, each.gpu): each for each in map(Predicted, published_rows())}
    yield "| published row | tokens/s a GPU | ours, row left out | AIConfigurator | asked of it |"
    yield "|---|---|---|---|---|"
    for line in make_board().lines:
        if line.model in ("deepseek-v3", "deepseek-r1") and line.figure == "tokens_per_s_per_gpu":
            yield _row(executable, line, rows[line.source, line.name, line.gpu].case())


def _row(executable: str, line: Line, case: Case) -> str:
    asked, answer = _asked(executable, case)
    error = f"{answer.tokens_per_s_per_gpu / line.measured - 1:+.1%}" if answer.tokens_per_s_per_gpu else "cannot say"
    note = ", ".join(filter(None, (asked, answer.note)))
    return f"| {line.name} | {line.measured:,.0f} | {line.judged or 0.0:+.1%} | {error} | {note} |"


def _asked(executable: str, case: Case) -> tuple[str, Answer]:
    """Return the nearest question, in words, and its answer."""
    system, ep_size, point = SYSTEMS_OF.get(case.machine.name), case.unit.num_gpus, case.point
    if system is None or case.phase == "mixed" or point.draft_tokens:
        why = "with drafts" if point.draft_tokens else "of mixed units" if system else f"of {case.machine.name}"
        return "", Answer(None, None, f"not asked {why}")
    group = case.unit.attention_tp
    nearest = 2 ** round(ep_size.bit_length() - 1) if ep_size & (ep_size - 1) else ep_size
    if case.phase == "prefill":
        batch, isl = round(point.step_tokens / point.prompt_tokens), int(point.prompt_tokens)
        answer = estimate(executable, "static_ctx", nearest, group, max(batch, 1), isl, 1, system)
    else:
        answer = estimate(
            executable, "static_gen", nearest, group, int(point.requests), int(point.kv_tokens), 2, system
        )
    return f"EP{nearest} of {system.partition('_')[0].upper()}", answer


def searches_tables(executable: str) -> Iterator[str]:
    """Yield what both searches took and chose, and what each tool says of both layouts."""
    phases: list[str] = []
    served: list[str] = []
    yield "| search | seconds | CPU s | MB | chosen |"
    yield "|---|---|---|---|---|"
    for num_gpus in GPUS:
        with tempfile.TemporaryDirectory() as name:
            took, found = search(executable, num_gpus, ISL, OSL, TTFT_MS, TPOT_MS, Path(name))
        kind, best = max(found.items(), key=lambda each: each[1].tokens_per_s_per_gpu)
        theirs = their_layouts(num_gpus, kind, best.row)
        yield _search_row(f"AIConfigurator, {num_gpus} H100", took, theirs)
        took, ours = our_search(num_gpus)
        yield _search_row(f"ours, {num_gpus} H100", took, ours)
        for who, chosen in (("AIConfigurator", theirs), ("us", ours)):
            rates = [_of_both(executable, each) for each in chosen]
            phases += [row for _, row in rates]
            by_us, by_them = (_served([rate[tool] for rate, _ in rates], chosen) / num_gpus for tool in (0, 1))
            by_them = best.tokens_per_s_per_gpu if chosen is theirs else by_them
            served.append(f"| {num_gpus} H100, chosen by {who} | {by_us:,.0f} | {by_them:,.0f} |")
    yield from (
        "",
        "| output tokens/s a GPU, over all GPUs | ours says | AIConfigurator says |",
        "|---|---|---|",
        *served,
        "",
    )
    yield "| tokens/s a GPU and ms of a step or token | ours says | room in memory, by ours | AIConfigurator says |"
    yield "|---|---|---|---|"
    yield from dict.fromkeys(phases)


def _served(rates: list[float], layouts: list[Layout]) -> float:
    """Return the output tokens/s that all phases keep up with."""
    return min(each.units * each.ep_size * rate / TOKENS[each.phase] for rate, each in zip(rates, layouts, strict=True))


def _search_row(who: str, took: Run, layouts: list[Layout]) -> str:
    chosen = "; ".join(f"{each.units} x {each.words}" for each in layouts)
    return f"| {who} | {took.wall_s:.1f} | {took.cpu_s:.1f} | {took.memory_mb:,.0f} | {chosen} |"


def their_layouts(num_gpus: int, kind: str, row: dict[str, str]) -> list[Layout]:
    """Return what AIConfigurator chose, with the rates that its search gives each phase."""
    replicas = num_gpus // int(row["num_total_gpus"])
    if kind == "agg":
        numbers = (int(row["moe_ep"]), int(row["tp"]), 0, int(row["bs"]), "none", replicas)
        return [Layout("mixed", *numbers, float(row["tokens/s/gpu"]))]
    found = []
    for p, phase, tokens in (("p", "prefill", ISL), ("d", "decode", OSL)):
        ep_size, tp, batch, workers = (int(row[f"({p}){field}"]) for field in ("moe_ep", "tp", "bs", "workers"))
        rate = float(row[f"({p})seq/s/worker"]) * tokens / ep_size
        found.append(Layout(phase, ep_size, tp, 0, batch, "none", workers * replicas, rate))
    return found


def our_search(num_gpus: int) -> tuple[Run, list[Layout]]:
    """Plan both kinds of phases with each overlap; return all that it took, and the layouts that serve most."""
    tried = [{"mixed": _free("none", max_requests="auto")}]
    tried += [{"prefill": _free(p), "decode": _free(d, max_requests="auto")} for p, d in OVERLAPS]
    runs, found = [], []
    for phases in tried:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "spec.yaml"
            path.write_text(json.dumps(spec(num_gpus // 8, phases)))
            runs.append(
                run(sys.executable, "-m", "planner.cli", "plan", str(path), "-o", f"{name}/plan.json", cwd=ROOT)
            )
            if runs[-1].returncode == 0:
                plan = json.loads((Path(name) / "plan.json").read_text())
                found.append((plan["search"]["output_tokens_per_s"] / num_gpus, _our_layouts(plan, phases)))
    _, layouts = max(found, key=lambda each: each[0])
    total = Run(0, "", sum(r.wall_s for r in runs), sum(r.cpu_s for r in runs), max(r.memory_mb for r in runs))
    return total, layouts


def _free(overlap: str, **more: Any) -> dict[str, Any]:
    return FREE | COMMON | {"overlap": overlap} | more


def spec(nodes: int, phases: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": 1,
        "name": "beside",
        "model": "deepseek-v3",
        "engine": "sglang",
        "cluster": {"gpu": "h100", "nodes": nodes, "gpus_per_node": 8},
        "operating_point": {phase: POINTS[phase] for phase in phases},
        "slo": {"ttft_ms": TTFT_MS, "tpot_ms": TPOT_MS},
        **phases,
    }


def _our_layouts(plan: dict[str, Any], phases: dict[str, Any]) -> list[Layout]:
    layouts = []
    for phase, searched in plan["search"]["phases"].items():
        chosen = next(each for each in searched["candidates"] if each["chosen"])
        load = chosen["max_batch_tokens"] // ISL or 1 if phase == "prefill" else chosen["max_requests"]
        numbers = (chosen["ep_size"], chosen["attention_tp"], chosen["redundant_experts"], load)
        layouts.append(Layout(phase, *numbers, phases[phase]["overlap"], plan["search"]["units"][phase]))
    return layouts


def _of_both(executable: str, each: Layout) -> tuple[tuple[float, float], str]:
    """Return both tools' tokens/s of a GPU, and their row of the table."""
    rate, ms, memory = our_estimate(each)
    asked = 2 ** (each.ep_size.bit_length() - 1)
    questions = {"prefill": ("static_ctx", ISL, 1), "decode": ("static_gen", KV, 2), "mixed": ("agg", ISL, OSL)}
    mode, isl, osl = questions[each.phase]
    if each.said is not None:
        theirs, note = each.said, "in its search"
    else:
        answer = estimate(executable, mode, asked, each.attention_tp, each.requests, isl, osl)
        theirs = answer.tokens_per_s_per_gpu or 0.0
        note = f"{answer.ms:,.0f} ms" if answer.ms else "cannot say"
        note += f", asked as EP{asked}" if asked != each.ep_size else ""
        note += f", {answer.note}" if answer.note else ""
    return (rate, theirs), f"| {each.words} | {rate:,.0f}, {ms:,.0f} ms | {memory} | {theirs:,.0f}, {note} |"


def our_estimate(each: Layout) -> tuple[float, float, str]:
    """Return our rate of a layout, its ms, and whether our ledger of memory has room for it."""
    phase = {"ep_size": each.ep_size, "attention_tp": each.attention_tp, "redundant_experts": each.redundant}
    steps = each.requests * ISL if each.phase == "prefill" else ISL
    phase |= {"max_batch_tokens": steps, "max_requests": each.requests if each.phase != "prefill" else 32}
    sections = {each.phase: COMMON | phase | {"overlap": each.overlap}}
    if each.phase != "mixed":
        other = "decode" if each.phase == "prefill" else "prefill"
        sections[other] = COMMON | {"ep_size": 32}
    checked = check_document(parse_document(json.dumps(spec(64, sections)), "beside.yaml"))
    trial = trial_of(checked, each.phase, {}, checked.phase(each.phase).max_requests)
    speed, memory = speed_of(trial, ReplicaBalance(checked.expert_loads)), trial.memory
    ms = speed.ttft_ms if each.phase == "prefill" else speed.tpot_ms
    needed = 0 if each.phase == "prefill" else each.requests * KV
    short = memory.missing_bytes > 0 or memory.kv_tokens < needed
    room = f"no: KV for {max(memory.kv_tokens, 0):,} of {needed:,} tokens" if short else "yes"
    if memory.missing_bytes > 0:
        room = f"no: {memory.missing_bytes / 1e9:.1f} GB short"
    return speed.tokens_per_s_per_gpu, ms, room


if __name__ == "__main__":
    sys.exit(main())

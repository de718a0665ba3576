"""A table of fields that have no effect in some specs, and the rules that reject them there.

A user who writes a field expects an effect and would get a plan that was not intended, so it is an error. The fix is to
remove the field. A field at its default is no error, since the spec inside a plan has every field.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.facts.engines import ENGINES, OURS
from planner.facts.terms import PHASES, Phase
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix
from planner.rules.engine_args import ARGS
from planner.rules.rule import Rule, report_no_effect
from planner.rules.valid_values import ValidValues
from planner.spec.declared import field_at
from planner.spec.kv_cache import KvCacheSpec


@dataclass(frozen=True)
class Unused:
    """Fields without an effect in the specs for which `applies` is true, and the reason."""

    paths: tuple[str, ...]
    where: str  # `{engine}` stands for the spec's engine
    reason: str
    applies: Callable[[ValidValues], bool]  # called if a field is written; no finding if it raises Unknown
    fix: Fix | str | None = None  # None: remove the field

    def findings(self, c: ValidValues, path: str) -> Iterator[Finding]:
        """Yield a finding if the field at `path` is written and has no effect."""
        is_section = any(each.startswith(f"{path}.") for each in c.values)
        value = None if is_section else c[path]
        is_default = value in (None, field_at(path).get_default(call_default_factory=True))
        if (is_section or not is_default) and self.applies(c):
            yield report_no_effect(self.where.format(engine=c.engine), self.reason, path, value, self.fix)


def _has_open_windows(c: ValidValues) -> bool:
    return c.is_open("schedule", "schedule.windows")


def _drafts_nothing(c: ValidValues) -> bool:
    drafts = [c[f"{phase}.draft_tokens"] for phase in PHASES[1:] if phase in c.sections]
    return bool(drafts) and not any(drafts)


def _runs_on_cpus(c: ValidValues) -> bool:
    return {c["cluster.gpu"], *filter(None, (c.get(f"{phase}.gpu") for phase in PHASES))} == {"cpu"}


def _without_phase(phase: Phase) -> Unused:
    paths = f"operating_point.{phase}", f"schedule.min_units.{phase}"
    return Unused(paths, f"without {phase}", "there is no such phase", lambda c: phase not in c.sections)


BUNDLED_ONLY = (
    "kubernetes.gateway.volumes",
    "kubernetes.controller.demand",
    "kubernetes.controller.stragglers_last",
)

FIELDS = (
    Unused(
        ("model.config_digest", "model.weights_digest"),
        "with config",
        "it is computed from the file, and from the manifest beside it",
        lambda c: c["model.config"] is not None,
    ),
    Unused(
        ("engine.version",),
        "with engine {engine}",
        "kubernetes.image decides the version",
        lambda c: not ENGINES[c["engine.name"]].versions,
    ),
    Unused(ARGS, "with engine {engine}", "only other engines' servers have such options", lambda c: c.engine == OURS),
    Unused(
        ("kubernetes.gateway.edge_image",),
        "with engine {engine}",
        "only vLLM's router has this proxy in front",
        lambda c: c.engine is not None and ENGINES[c.engine].edge_image is None,
    ),
    Unused(
        ("split",),
        "with engine {engine}",
        "the engine chooses replicas by a rule of its own",
        lambda c: c.engine is not None and ENGINES[c.engine].split not in (None, c["split"]),
    ),
    Unused(
        ("cluster.gpu.nvlink_domain",),
        "without nvlink",
        "it describes a link that would not exist",
        lambda c: c["cluster.gpu.nvlink"] is None,
        "write nvlink too, for example nvlink: 450GB/s, or remove it",
    ),
    Unused(
        ("cluster.gpu.gpus_per_nic",),
        "without nic",
        "it describes a link that would not exist",
        lambda c: c["cluster.gpu.nic"] is None,
        "write nic too, for example nic: 400Gbps, or remove it",
    ),
    Unused(
        tuple(f"cluster.{kind}_size" for kind in ("rack", "leaf")),
        "with a list of nodes",
        "each listed node gives its own rack and leaf",
        lambda c: not isinstance(c["cluster.nodes"], int),
    ),
    Unused(
        ("prefill.draft_tokens",),
        "in prefill",
        "only decode drafts tokens, and decode.draft_tokens makes prefill load the MTP module too",
        lambda c: True,
    ),
    Unused(
        ("expert_load.alpha", "expert_load.seed"),
        "with expert_load.file",
        "with measured loads, nothing is drawn at random",
        lambda c: c["expert_load.file"] is not None,
    ),
    Unused(
        ("expert_load.live",),
        "with engine {engine}",
        "only Tidemill's own ranks move experts while they serve",
        lambda c: c.engine not in (None, OURS),
    ),
    Unused(
        ("expert_load.live",),
        "with units of one rank",
        "such a rank holds every expert",
        lambda c: {c[f"{phase}.ep_size"] for phase in c.phases} == {1},
    ),
    *map(_without_phase, PHASES),
    Unused(("operating_point.acceptance_rate",), "without draft_tokens", "nothing is drafted then", _drafts_nothing),
    Unused(
        ("operating_point.prefill.cache_hit_rate",),
        "beside traffic.cache_hit_rate",
        "the operating point has the hits of the traffic",
        lambda c: c["operating_point.prefill.cache_hit_rate"] != c["traffic.cache_hit_rate"],
    ),
    Unused(("schedule.other_days",), "with windows: auto", "auto windows follow traffic.other_days", _has_open_windows),
    Unused(
        ("traffic.other_days",),
        "without profile",
        "the demand of other days is relative to that of a usual day",
        lambda c: not c.is_given("traffic.profile"),
        "write traffic.profile: the demand of each of the 24 hours of a usual day",
    ),
    Unused(
        ("cost.prices",),
        "without traffic",
        "income is the price times the tokens of a day",
        lambda c: "traffic" not in c.sections,
    ),
    Unused(
        (*(f"kv_cache.{name}" for name in KvCacheSpec.model_fields), *BUNDLED_ONLY),
        "with engine {engine}",
        "only Tidemill's own ranks and gateway read it",
        lambda c: c.engine not in (None, OURS),
    ),
    Unused(("kv_cache.transport",), "with mixed units", "they send no KV", lambda c: "mixed" in c.sections),
    Unused(
        ("kv_cache.transport",),
        "on GPUs",
        "it writes between ranks of one machine, and units on GPUs share no node",
        lambda c: "mixed" not in c.sections and c["cluster.gpu"] != "cpu",
    ),
    Unused(
        ("kubernetes.kv_cache_claim",),
        "without kv_cache.disk",
        "the claim is mounted at kv_cache.disk.path",
        lambda c: c["kv_cache.disk"] is None,
    ),
    Unused(("cost.disk",), "without kv_cache.disk", "no other disk is priced", lambda c: c["kv_cache.disk"] is None),
    Unused(
        ("kubernetes.networks",),
        "with host_network: true",
        "pods use the node's network interfaces then, and cannot join others",
        lambda c: bool(c["kubernetes.host_network"]),
        Fix("remove networks or host_network", ({HERE: None}, {"kubernetes.host_network": None})),
    ),
    Unused(("kubernetes.gpu_resource",), "with cluster.gpu: cpu", "ranks on CPUs request no device", _runs_on_cpus),
    Unused(
        ("kubernetes.compute_domain",),
        "on these GPUs",
        "their NVLink does not reach beyond a node",
        lambda c: bool(c["kubernetes.compute_domain"]) and not c.gpu.nvlink_leaves_node,
    ),
)


def _describe(row: Unused) -> str:
    where = row.where.format(engine="sglang or vllm")
    return f"{', '.join(row.paths)}: no effect {where}, as {row.reason}."


RULES = tuple(Rule("S560", "fields", each.findings, each.paths, _describe(each)) for each in FIELDS)

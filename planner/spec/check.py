"""A spec file to a spec that can be planned, or to everything that is wrong with it.

    text -> yaml.py (data, places) -> fields.py (single fields) -> named.py (files, catalog) -> rules -> ResolvedSpec

All of it happens before the first pass, so that passes never meet a wrong spec, and a user meets all mistakes at once:
a field that is wrong silences only the rules that read it.

It does not plan: whether the cluster is large enough is not asked here.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.facts.catalog import GPUS, Gpu
from planner.facts.engines import ENGINES, OURS
from planner.facts.exchange import EXCHANGES, Exchange
from planner.facts.loads import Loads
from planner.facts.model import Model
from planner.facts.terms import PHASES, Phase
from planner.problems.errors import SpecError
from planner.problems.finding import Finding
from planner.problems.fix import Change, Fix, applied
from planner.spec.cluster import ClusterSpec
from planner.spec.declared import place_of
from planner.spec.fields import check_fields
from planner.spec.layout_rules import broken_rules
from planner.spec.named import Named
from planner.spec.phase import PhaseSpec
from planner.spec.places import in_full
from planner.spec.schema import Spec
from planner.spec.undecided import AUTO
from planner.spec.yaml import Document, read_document

if TYPE_CHECKING:
    from planner.facts.forecast import Forecast

__all__ = ["ResolvedSpec", "check_document", "check_spec", "document_with", "mistakes_in", "resolve", "with_values"]

MAX_TRIED = 2**15  # values that are checked to try changes (assumed): a spec of 100 values has 300 tries


@dataclass(frozen=True)
class ResolvedSpec:
    """A spec without mistakes, together with what the files and catalog entries that it names say."""

    written: Spec
    model: Model
    config_digest: str | None  # of the checkpoint's config.json; None where neither a file nor the spec says it
    weights_digest: str | None  # of the manifest beside it, likewise
    other_quantization: str | None  # what the config.json's quantization_config says that no precision does
    gpu: Gpu
    measured_loads: Loads | None  # of expert_load.file
    forecast: "Forecast | None"  # of traffic.history, whose quantile is the profile
    inputs: Mapping[str, str]  # sha256 of every file that the spec names, by the name that it has there
    document: Document

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return the phases that the spec has: prefill and decode, or mixed."""
        return self.written.phases

    def gpu_of(self, phase: Phase) -> Gpu:
        """Return what `phase` runs on."""
        name = self.written.gpu_name(phase)
        return self.gpu if name == self.cluster.gpu_name else GPUS[name]

    def named_gpus(self) -> Iterator[tuple[str, str, Gpu]]:
        """Yield where the spec names what its phases run on, the name there, and its figures."""
        if any(self.phase(phase).gpu is None for phase in self.phases):
            yield "cluster.gpu", self.cluster.gpu_name, self.gpu
        for phase in self.phases:
            if (name := self.phase(phase).gpu) is not None:
                yield f"{phase}.gpu", name, self.gpu_of(phase)

    @property
    def cluster(self) -> ClusterSpec:
        """Return the nodes as written."""
        return self.written.cluster

    @property
    def loaded_model(self) -> Model:
        """Return the model as its phases load it: where tokens are drafted, with an MTP module."""
        return self.model.with_drafts() if self.written.draft_tokens else self.model

    @property
    def has_windows_of_traffic(self) -> bool:
        """Whether the traffic counts the units of each window, now or once the planner has decided."""
        return bool({"schedule", "schedule.windows"} & self.document.autos)

    def phase(self, phase: Phase) -> PhaseSpec:
        """Return what is written about `phase`."""
        return self.written.phase(phase)

    def trying(self, phase: Phase, numbers: Mapping[str, int]) -> "ResolvedSpec":
        """Return it with other numbers in `phase`, unchecked: for a look at its memory."""
        section = self.phase(phase).model_copy(update=dict(numbers))
        return replace(self, written=self.written.model_copy(update={phase: section}))

    def locate(self, finding: Finding) -> Finding:
        """`finding` with its line, for passes that find the spec infeasible."""
        return self.document.locate(finding)


def check_spec(path: Path) -> ResolvedSpec:
    """The spec in the file at `path`. Raises SpecError with every mistake in it."""
    return check_document(read_document(path))


def check_document(document: Document) -> ResolvedSpec:
    """The spec in `document`, whose files lie beside it. Raises SpecError with every mistake in it.

    A change that a mistake offers has been tried: with it that mistake is gone, and no other one is there.
    """
    try:
        return resolve(document)
    except SpecError as error:
        raise SpecError(list(_keep_sound_changes(error.findings, document))) from None


def resolve(document: Document) -> ResolvedSpec:
    """Return the spec in `document`. Raises SpecError with every mistake in it, whose changes nobody has tried."""
    fields = check_fields(document.data, document.unread)
    named = Named(Path(document.file).parent, fields.values)
    values = fields.values | named.resolved | _given_keys(document.data, fields.renamed) | _units(fields.values)
    values |= _exchanged(values) | _largest_group(values)
    as_written = {f"{phase}.as_written": phase for phase in PHASES} | {"spec.autos": document.autos}
    findings = [*fields.findings, *named.findings, *broken_rules(values | as_written)]
    refused = [finding for _, finding in document.refused]
    if findings or refused:
        raise SpecError([*refused, *map(document.locate, findings)])
    return ResolvedSpec(
        written=_following(Spec.model_validate(document.data), named.resolved.get("traffic.forecast")),
        model=named.resolved["model.shapes"],
        config_digest=named.resolved.get("model.digest") or values.get("model.config_digest"),
        weights_digest=named.resolved.get("model.digest_of_weights") or values.get("model.weights_digest"),
        other_quantization=named.resolved.get("model.other_quantization"),
        gpu=named.resolved["cluster.device"],
        measured_loads=named.resolved.get("expert_load.loads"),
        forecast=named.resolved.get("traffic.forecast"),
        inputs=named.inputs,
        document=document,
    )


def _following(spec: Spec, forecast: "Forecast | None") -> Spec:
    """Return `spec` with the forecast quantile for its profile, where past days are given in place of one.

    Its tokens and requests are then those of that day: those of the spec are the median day's.
    """
    if forecast is None or spec.traffic is None:
        return spec
    traffic, more = spec.traffic, forecast.times_the_median
    tokens = {"input_tokens": more * traffic.input_tokens, "output_tokens": more * traffic.output_tokens}
    requests = None if traffic.requests is None else more * traffic.requests
    following = traffic.model_copy(update={"profile": list(forecast.quantile), **tokens, "requests": requests})
    return spec.model_copy(update={"traffic": following})


def mistakes_in(data: Mapping[str, Any]) -> list[Finding]:
    """Return what is wrong with the data of a spec, as far as that can be told without the files that it names."""
    fields = check_fields(data)
    values = fields.values | _given_keys(data, fields.renamed) | _units(fields.values)
    return [*fields.findings, *broken_rules(values)]


def with_values(spec: ResolvedSpec, values: Change) -> ResolvedSpec:
    """`spec` as if its user had written `values` (dotted path -> value), checked anew. Raises SpecError."""
    return resolve(document_with(spec.document, values))


def document_with(document: Document, values: Change) -> Document:
    """Return `document` as if its user had written `values` (dotted path -> value)."""
    data = applied(in_full(document.data, values), values)
    return replace(document, data=data, autos=document.autos | set(_left_open(values)))


def _left_open(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the paths at which `values` say `auto`, as a file would."""
    for key, value in values.items():
        if value == AUTO:
            yield f"{above}{key}"
        elif isinstance(value, dict):
            yield from _left_open(value, f"{above}{key}.")


def _keep_sound_changes(findings: Sequence[Finding], document: Document) -> Iterator[Finding]:
    """Yield `findings` without the changes that do not mend them, or break something else.

    Each try checks the whole spec, so that of many mistakes in a large file the last ones have words alone.
    """
    tries, before = MAX_TRIED // len(document.values), _count(findings)
    for finding in findings:
        rest = before - _count([finding])
        sound = [each for each in finding.changes[:tries] if _count_mistakes_with(each, document) <= rest]
        tries -= min(tries, len(finding.changes))
        yield replace(finding, fix=Fix(str(finding.fix), tuple(sound)))


def _count_mistakes_with(change: Change, document: Document) -> Counter[tuple[str, str]]:
    try:
        resolve(document_with(document, change))
    except SpecError as error:
        return _count(error.findings)
    return Counter()


def _count(findings: Sequence[Finding]) -> Counter[tuple[str, str]]:
    """Return how often each rule is broken at each place: a change of a list moves its items."""
    return Counter((place_of(each.path), each.id) for each in findings)


def _given_keys(data: Mapping[str, Any], renamed: frozenset[str]) -> dict[str, Any]:
    """Collect the keys present in the spec, renamed ones included, for rules about keys that exclude others."""
    sections = {name: section for name, section in data.items() if isinstance(section, dict)}
    given = {
        f"{name}.given": frozenset(key for key, value in section.items() if value is not None)
        for name, section in sections.items()
    }
    written = frozenset(name for name, section in data.items() if section is not None)
    names = {f"{phase}.name": phase for phase in PHASES}
    return {"spec.sections": written | renamed, "expert_load.given": frozenset()} | names | given


def _units(values: Mapping[str, Any]) -> dict[str, Any]:
    """How many units each phase has, for the rule about their names; and the GPUs that there are for one of them."""
    counts = {phase: values[f"{phase}.units"] for phase in PHASES if f"{phase}.units" in values}
    others = values.get("schedule.other_days") or []
    for window in chain(values.get("schedule.windows") or [], *(each.get("windows", []) for each in others)):
        counts |= {phase: max(number, window.get(f"{phase}_units") or 0) for phase, number in counts.items()}
    return {"spec.units": counts} | _room(values, counts) if counts else {}


def _exchanged(values: Mapping[str, Any]) -> dict[str, Callable[[int], bool]]:
    """Whether the engine exchanges rows between so many GPUs, for each phase; the bundled runtime always does."""
    name, per_node = values.get("engine.name", values.get("engine", OURS)), values.get("cluster.gpus_per_node")
    if name == OURS or name not in ENGINES or per_node is None or "cluster.device" not in values:
        return {}
    version: str = values.get("engine.version") or ENGINES[name].versions[-1]

    def takes(phase: Phase, exchange: Exchange, ep_size: int) -> bool:
        gpu: Gpu = GPUS.get(values.get(f"{phase}.gpu") or "", values["cluster.device"])
        return ep_size == values.get(f"{phase}.attention_tp", 1) or exchange.takes(ep_size, per_node, gpu)

    phases = EXCHANGES[name].get(version, {})
    return {f"{phase}.exchanged": partial(takes, phase, exchange) for phase, exchange in phases.items()}


def _largest_group(values: Mapping[str, Any]) -> dict[str, int]:
    """The GPUs that may share attention, where the engine keeps a group on one node."""
    name, per_node = values.get("engine.name", values.get("engine", OURS)), values.get("cluster.gpus_per_node")
    if name not in ENGINES or ENGINES[name].groups_span_nodes or per_node is None:
        return {}
    return {"engine.largest_group": per_node}


def _room(values: Mapping[str, Any], counts: Mapping[Phase, int]) -> dict[str, int]:
    """The GPUs of the nodes that other phases leave to each unit of a phase, where that is at least one node."""
    nodes, per_node = values.get("cluster.nodes"), values.get("cluster.gpus_per_node")
    if nodes is None or per_node is None:
        return {}
    taken = {phase: count * max(1, values.get(f"{phase}.ep_size", 1) // per_node) for phase, count in counts.items()}
    num_nodes = (nodes if isinstance(nodes, int) else len(nodes)) - len(values.get("cluster.spares") or ())
    left = {phase: num_nodes - (sum(taken.values()) - taken[phase]) for phase in counts}
    return {
        f"{phase}.room": left[phase] // count * per_node for phase, count in counts.items() if left[phase] >= count > 0
    }

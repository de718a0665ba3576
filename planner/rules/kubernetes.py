"""The rules of `kubernetes`, apart from volumes, pods and overlays."""

import re
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

from planner.estimate.loading import slowest_start
from planner.facts.day import DAY_S, MINUTE_S
from planner.facts.engines import ENGINES, OURS
from planner.facts.exchange import EXCHANGES
from planner.facts.quantities import gb
from planner.facts.terms import EngineName, Phase
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix, for_example, nearest, removal
from planner.rules.rule import Candidate, Rule, without_effect
from planner.rules.written import Written
from planner.spec.kubernetes import DEFAULT_IMAGE, KubernetesSpec
from planner.spec.resolved import ResolvedSpec

__all__ = ["RULES"]

TIMES_READING = 2  # that are offered: other nodes read too, and pods start first; assumed
ONLY_OURS = {
    "kubernetes.gateway.volumes": "its router mounts no volumes",
    "kubernetes.controller.demand": "only Tidemill's own gateway measures the load of each phase",
    "kubernetes.controller.stragglers_last": "only Tidemill's own ranks report how long they take",
}
IMAGE_WORDS: dict[EngineName, str] = {"vllm": "vllm", "sglang": "sglang", "tidemill": "tidemill-runtime"}


def controllers_have_a_day(c: Written) -> Iterator[Finding]:
    """Every unit runs all day where there is no schedule."""
    c.require("kubernetes.controller.pace")
    if "schedule" not in c.sections:
        reason, path = "there is no day for the units to follow", "kubernetes.controller"
        yield Finding(path, None, "S516 needs a schedule", reason, removal(path))


def controllers_scale_whole_units(c: Written) -> Iterator[Finding]:
    """A StatefulSet's replicas are a unit's nodes, which the plan decides and whoever applies it writes."""
    c.require("kubernetes.controller.pace")
    unit_kind: str = c["kubernetes.unit_kind"]
    if unit_kind == "leaderworkerset":
        return
    fix = Fix(
        "remove kubernetes.unit_kind or kubernetes.controller",
        ({"kubernetes.unit_kind": None}, {"kubernetes.controller": None}),
    )
    rule = f"S507 must not be combined with kubernetes.unit_kind: {unit_kind}"
    reason = (
        "a LeaderWorkerSet is turned off and on by replicas 0 and 1, but a StatefulSet's replicas are the unit's nodes"
    )
    yield Finding("kubernetes.controller", None, rule, reason, fix)


def our_programs_have_an_image(c: Written) -> Iterator[Finding]:
    """The images of other engines hold no Tidemill."""
    units: str = c["kubernetes.image"]
    image: str | None = c["kubernetes.tidemill_image"]
    used = c.engine
    copies = c.get("kubernetes.stage.source") is not None and units != DEFAULT_IMAGE
    follows = c.get("kubernetes.controller.pace") is not None
    if image is None and used not in (None, OURS) and (copies or follows):
        path = "kubernetes.tidemill_image"
        who = "the controller" if follows else "kubernetes.stage"
        reason = f"{who} runs tidemill, which no image of {used} holds"
        fix = for_example("tidemill_image: registry.example.com/tidemill-runtime:0.1.0")
        yield Finding(path, None, f"S202 is required with engine {used}", reason, fix)


def other_engines_lack_it(c: Written, path: str) -> Iterator[Finding]:
    """Another engine's router mounts nothing and counts otherwise, and its ranks do not tell how long they take."""
    used = c.engine
    value: Any = c.get(path)
    is_there = c.get(f"{path}.used") is not None if value is None else value is not False
    if is_there and used not in (None, OURS):
        shown = value if isinstance(value, list) else None
        yield without_effect(f"with engine {used}", ONLY_OURS[path], path, shown)


def sound_nodes_are_not_left(c: Written) -> Iterator[Finding]:
    """A condition of heal is true when something is wrong; one of Kubernetes' own is true when all is well."""
    conditions: Sequence[str] = c["kubernetes.controller.heal.conditions"]
    for index, kind in enumerate(conditions):
        if kind.partition("=")[0] == "Ready":
            rule, fix = "S472 must not be Ready", removal()
            reason = "Ready is true on a healthy node, and Kubernetes itself ends the pods of a node that is not Ready"
            yield Finding(f"kubernetes.controller.heal.conditions.{index}", kind, rule, reason, fix)


def quotas_are_of_nodes_that_are_lent(c: Written) -> Iterator[Finding]:
    """Nodes that are never free have no quota."""
    c.require("kubernetes.controller.kueue.cluster_queue")
    lends: bool = c["kubernetes.controller.lend_nodes"]
    if lends:
        return
    path, other = "kubernetes.controller.kueue", "kubernetes.controller.lend_nodes"
    fix = Fix(f"remove it, or write {other}: true", ({path: None}, {other: True}))
    yield without_effect("without lend_nodes: true", "no node is ever free for Kueue's jobs then", path, fix=fix)


def images_have_gpu_kernels(c: Candidate) -> Iterator[Finding]:
    """Yield the default image when units run on GPUs: it has no GPU kernels."""
    spec = c.resolved.written
    image = spec.kubernetes.image
    if spec.is_on_gpus and spec.checkpoint and spec.engine_name == OURS and image == DEFAULT_IMAGE:
        rule, reason = "W107 is the image for CPUs", "the image with GPU kernels is built from Containerfile.gpu"
        yield Finding("kubernetes.image", image, rule, reason, "build that image and name it in kubernetes.image")


def images_are_of_the_engine(c: Candidate) -> Iterator[Finding]:
    """Yield an image that is called after another engine, or another version, than is to run in it."""
    spec = c.resolved.written
    image, engine = spec.kubernetes.image, spec.engine_name
    if image == DEFAULT_IMAGE:
        return  # an engine that is not ours then has its own
    name = image.rpartition("@")[0] or image
    called = [each for each, word in IMAGE_WORDS.items() if word in name.casefold()]
    if called and engine not in called:
        rule = f"W107 has the name of an image of {called[0]}, and engine is {engine}"
        reason = f"pods start with the command of {engine}"
        fix = f"name an image of {engine}, or write engine: {called[0]}"
        yield Finding("kubernetes.image", image, rule, reason, fix)
    elif (tagged := _tagged_version(image, ENGINES[engine].image)) not in (None, spec.engine_version):
        rule = f"W107 is tagged as {engine} {tagged}, and the plan is for {spec.engine_version}"
        reason = f"a flag of {spec.engine_version} that it lacks ends its pods as they start, again and again"
        yield Finding("kubernetes.image", image, rule, reason, f"name an image of {engine} {spec.engine_version}")


def pods_have_rdma(c: Candidate) -> Iterator[Finding]:
    """Yield units over several nodes whose pods get no RDMA devices; the overlay may give them in another way."""
    spec = c.resolved
    kubernetes = spec.written.kubernetes
    is_given = kubernetes.rdma is not None or kubernetes.host_network
    overlay = kubernetes.overlay
    if is_given or (overlay is not None and overlay.unit_pod):
        return
    phase = next((each for each in spec.phases if _leaves_nvlink(spec, each)), None)
    if phase is not None:
        rule = f"W111 is missing, and a {phase} unit has {spec.phase(phase).ep_size} GPUs on several nodes"
        reason = "pods with their own network see only the RDMA devices that they request"
        fix = "write the device plugin's resource in kubernetes.rdma, or write kubernetes.host_network: true"
        yield Finding("kubernetes.rdma", None, rule, reason, fix)


def pods_drain_as_long_as_nodes(c: Candidate) -> Iterator[Finding]:
    """Yield pods that get less time for their answers than the day pays their nodes for."""
    spec = c.resolved.written
    drain, paid = spec.kubernetes.drain, spec.paid_drain_s
    if drain is not None and paid is not None and drain < paid:
        rule = f"W125 is less than schedule.drain ({paid:g} s)"
        reason = "the controller cuts off longer answers, although their unit keeps its nodes for all of schedule.drain"
        fix = Fix("remove it, so that schedule.drain applies", ({HERE: None},))
        yield Finding("kubernetes.drain", drain, rule, reason, fix)


def jobs_leave_lent_nodes(c: Candidate) -> Iterator[Finding]:
    """Yield nodes that are lent to jobs which nothing makes leave."""
    kubernetes = c.resolved.written.kubernetes
    if kubernetes.lends_nodes and kubernetes.priority_class is None:
        rule = "W128 is set without kubernetes.priority_class"
        reason = "if a job does not leave a lent node in time, the unit's pods stay pending"
        fix = "write kubernetes.priority_class: a class above that of the jobs, so that the scheduler preempts them"
        yield Finding("kubernetes.controller.lend_nodes", True, rule, reason, fix)


def units_start_in_time(c: Candidate) -> Iterator[Finding]:
    """Yield a `ready_timeout` that ends before the slowest unit's pods may have started.

    A spec without a checkpoint is only planned.
    """
    spec = c.resolved
    if not c.memory or not spec.written.checkpoint:
        return
    kubernetes, engine = spec.written.kubernetes, spec.written.engine_name
    start = slowest_start(spec, c.memory)
    if start.needed_s <= kubernetes.ready_timeout:
        return
    reads = f"reads {gb(int(start.node_bytes))} at kubernetes.load_rate"
    if engine == OURS:
        rule = f"W151 is less than the {_minutes(start.reading_s):,} min that a node takes to read its weights"
        reason = f"it {reads}, and a unit that is not ready by then is an error"
    else:
        rule = f"W151 is less than the {_minutes(start.needed_s):,} min that a pod of {engine} gets to start"
        reason = f"it {reads} and compiles kernels, and a unit that is not ready by then is an error"
    enough = max(start.needed_s, TIMES_READING * start.reading_s)
    fix = nearest(f"{_minutes(enough)}min") if enough <= DAY_S else "raise load_rate once storage is that fast"
    default = KubernetesSpec.model_fields["ready_timeout"].default
    written = (spec.document.data.get("kubernetes") or {}).get("ready_timeout", default)
    yield Finding("kubernetes.ready_timeout", written, rule, reason, fix)


def _leaves_nvlink(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether GPUs of one unit of `phase` reach each other by NICs only."""
    gpu, section, engine = spec.gpu_of(phase), spec.phase(phase), spec.written.engine_name
    joined = 1 if spec.written.kubernetes.compute_domain is False else gpu.domain_size(spec.cluster.gpus_per_node)
    if engine != OURS and section.ep_size != section.attention_tp:
        joined = EXCHANGES[engine][spec.written.engine_version or ""][phase].without_nics(joined)
    return gpu.device == "cuda" and section.ep_size > max(spec.cluster.gpus_per_node, joined)


def _tagged_version(image: str, published: str | None) -> str | None:
    """Return the version with which a tag begins, as `published` tags them; None for an image of another name."""
    own = (published or "").partition(":")[0].rpartition("/")[2]
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    found = re.match(r"v?(\d+\.\d+\.\d+)", tag)
    return found[1] if name == own and found else None


def _minutes(seconds: float) -> int:
    return ceil(seconds / MINUTE_S)


RULES = (
    Rule("S516", "fields", controllers_have_a_day),
    Rule("S507", "fields", controllers_scale_whole_units),
    Rule("S202", "fields", our_programs_have_an_image),
    Rule("S472", "fields", sound_nodes_are_not_left),
    Rule("S560", "fields", other_engines_lack_it, tuple(ONLY_OURS)),
    Rule("S560", "fields", quotas_are_of_nodes_that_are_lent),
    Rule("W107", "started", images_have_gpu_kernels),
    Rule("W107", "laid out", images_are_of_the_engine),
    Rule("W111", "laid out", pods_have_rdma),
    Rule("W125", "laid out", pods_drain_as_long_as_nodes),
    Rule("W128", "laid out", jobs_leave_lent_nodes),
    Rule("W151", "started", units_start_in_time),
)

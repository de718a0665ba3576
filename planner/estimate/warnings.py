"""Warnings about a spec that is right, and whose deployment comes to harm: requests, pods, money or safety are lost.

A warning has the four parts of an error: field and value, rule, reason, fix. It changes neither the plan nor the exit
status. What is certainly wrong, or has no effect, is an error instead (`spec/layout_rules.py`). What only the cluster
can show is a row of the plan (`report/relied_on.py`).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain

from planner.estimate.exposed import exposed_by
from planner.estimate.from_others import from_others, image_of_another
from planner.estimate.plausible import implausible_figures
from planner.estimate.slow_loading import slow_loading
from planner.facts.counted import counted
from planner.facts.engines import OURS
from planner.facts.exchange import EXCHANGES
from planner.facts.terms import Phase
from planner.layout.memory import USUAL_SHARE, MemoryPlan, in_pages, memory_of
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix
from planner.spec.check import ResolvedSpec
from planner.spec.kubernetes import DEFAULT_IMAGE, KubernetesSpec
from planner.spec.phase import PhaseSpec
from planner.spec.schema import Spec
from planner.spec.volume_rules import volume_of

__all__ = ["warnings_of"]


def warnings_of(spec: ResolvedSpec, memory: Sequence[MemoryPlan], *, is_runnable: bool) -> tuple[Finding, ...]:
    """Return every warning about `spec`, whose phases have `memory`, with its line.

    The engine runs the plan where it `is_runnable`.
    """
    found = chain(
        _limits(spec, memory),
        _in_another_precision(spec),
        implausible_figures(spec),
        _deployed(spec, memory) if is_runnable else (),
        image_of_another(spec.written),
        _no_rdma(spec),
        _short_drain(spec.written),
        _late_jobs(spec.written.kubernetes),
        exposed_by(spec.written.kubernetes),
    )
    return tuple(map(spec.locate, found))


def _deployed(spec: ResolvedSpec, memory: Sequence[MemoryPlan]) -> Iterator[Finding]:
    """Yield what its pods would run, or fail to read."""
    yield from _unseen_checkpoint(spec.written)
    yield from _unseen_tokenizer(spec.written)
    yield from _image_for_cpus(spec.written)
    yield from from_others(spec)
    yield from slow_loading(spec, memory)


def _limits(spec: ResolvedSpec, memory: Sequence[MemoryPlan]) -> Iterator[Finding]:
    """Yield limits of requests that no GPU has KV for, however short most requests are.

    Prefill is left out: it computes one request at a time.
    """
    for plan in memory:
        section = spec.phase(plan.phase)
        if plan.phase == "prefill" or _is_held(plan, section):
            continue
        full = counted(plan.full_requests, "request")
        length = f"{plan.max_request_tokens:,} tokens"
        rule = f"W101 is more than memory holds: there is KV for {full} of full length ({length})"
        mean = plan.kv_tokens // section.max_requests
        reason = f"with so many at once, each has KV for {mean:,} tokens on average, and some wait or are preempted"
        held = _most_held(spec, plan.phase)
        share = f"1/{1 / USUAL_SHARE:.0f} of full length"
        fix = Fix(f"nearest: {held}, so that each has KV for {share}", ({HERE: held},))
        yield Finding(f"{plan.phase}.max_requests", section.max_requests, rule, reason, fix)


def _is_held(plan: MemoryPlan, section: PhaseSpec) -> bool:
    """Return whether there is KV for all requests at the usual share of full length, or for all that is asked for."""
    usual = USUAL_SHARE * section.max_requests * in_pages(plan.max_request_tokens)
    return plan.kv_tokens >= min(usual, section.max_kv_tokens or usual)


def _most_held(spec: ResolvedSpec, phase: Phase) -> int:
    """Return the most requests that KV holds, when their own buffers are taken off it."""

    def is_too_much(max_requests: int) -> bool:
        tried = spec.trying(phase, {"max_requests": max_requests})
        plan = memory_of(tried, phase)
        return plan is not None and not _is_held(plan, tried.phase(phase))

    return bisect_left(range(1, spec.phase(phase).max_requests), True, key=is_too_much)


def _in_another_precision(spec: ResolvedSpec) -> Iterator[Finding]:
    """Yield precisions that stand for weights in a form that nobody here knows: engines may refuse to load them."""
    if spec.other_quantization is not None:
        for phase in spec.phases:
            rule = f"W113 is not what the checkpoint says ({spec.other_quantization})"
            reason = f"memory is planned for weights in {spec.phase(phase).precision}, and this checkpoint's are others"
            fix = "give the config.json of the checkpoint that is meant"
            yield Finding(f"{phase}.precision", spec.phase(phase).precision, rule, reason, fix)


def _unseen_checkpoint(spec: Spec) -> Iterator[Finding]:
    """Yield a folder of weights that pods on GPUs do not mount; the image may hold it, but seldom does."""
    path, kubernetes = spec.checkpoint, spec.kubernetes
    is_mounted = path is None or volume_of(path, [volume.model_dump() for volume in kubernetes.volumes]) is not None
    if _is_on_gpus(spec) and path is not None and not is_mounted and kubernetes.stage is None:
        rule = "W106 is in none of kubernetes.volumes"
        reason = "pods see only the volumes they mount, and images rarely contain weights"
        yield Finding("model.checkpoint", path, rule, reason, "add the volume that it is on to kubernetes.volumes")


def _unseen_tokenizer(spec: Spec) -> Iterator[Finding]:
    """Yield a checkpoint whose tokenizer is on no volume that the gateway mounts of its own."""
    read, own = _read_by_gateway(spec), [volume.model_dump() for volume in spec.kubernetes.gateway.volumes or ()]
    if read is not None and own and volume_of(read, own) is None:
        rule = "W106 is in none of kubernetes.gateway.volumes"
        reason = "of the checkpoint the gateway reads config.json and the tokenizer's files"
        fix = "add a volume with them to kubernetes.gateway.volumes, or write [] if they are in its image"
        yield Finding("model.checkpoint", spec.checkpoint, rule, reason, fix)


def _read_by_gateway(spec: Spec) -> str | None:
    """Return the folder from which our gateway reads the tokenizer; None where units on GPUs have no such gateway.

    It reads where the ranks read. Of a staged checkpoint it sees the original, unless it mounts volumes of its own.
    """
    if not _is_on_gpus(spec) or spec.checkpoint is None or spec.engine_name != OURS:
        return None
    stage, own = spec.kubernetes.stage, spec.kubernetes.gateway.volumes
    return stage.source if stage is not None and own is None else spec.checkpoint


def _image_for_cpus(spec: Spec) -> Iterator[Finding]:
    """Yield the default image when units run on GPUs: it has no GPU kernels."""
    image = spec.kubernetes.image
    if _is_on_gpus(spec) and spec.checkpoint and spec.engine_name == OURS and image == DEFAULT_IMAGE:
        rule, reason = "W107 is the image for CPUs", "the image with GPU kernels is built from Containerfile.gpu"
        yield Finding("kubernetes.image", image, rule, reason, "build that image and name it in kubernetes.image")


def _no_rdma(spec: ResolvedSpec) -> Iterator[Finding]:
    """Yield units over several nodes whose pods get no RDMA devices; the overlay may give them in another way."""
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


def _short_drain(spec: Spec) -> Iterator[Finding]:
    """Yield pods that get less time for their answers than the day pays their nodes for."""
    drain, paid = spec.kubernetes.drain, spec.paid_drain_s
    if drain is not None and paid is not None and drain < paid:
        rule = f"W125 is less than schedule.drain ({paid:g} s)"
        reason = "the controller cuts off longer answers, although their unit keeps its nodes for all of schedule.drain"
        fix = Fix("remove it, so that schedule.drain applies", ({HERE: None},))
        yield Finding("kubernetes.drain", drain, rule, reason, fix)


def _late_jobs(kubernetes: KubernetesSpec) -> Iterator[Finding]:
    """Yield nodes that are lent to jobs which nothing makes leave."""
    if kubernetes.lends_nodes and kubernetes.priority_class is None:
        rule = "W128 is set without kubernetes.priority_class"
        reason = "if a job does not leave a lent node in time, the unit's pods stay pending"
        fix = "write kubernetes.priority_class: a class above that of the jobs, so that the scheduler preempts them"
        yield Finding("kubernetes.controller.lend_nodes", True, rule, reason, fix)


def _leaves_nvlink(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether GPUs of one unit of `phase` reach each other by NICs only."""
    gpu, section, engine = spec.gpu_of(phase), spec.phase(phase), spec.written.engine_name
    joined = 1 if spec.written.kubernetes.compute_domain is False else gpu.domain_size(spec.cluster.gpus_per_node)
    if engine != OURS and section.ep_size != section.attention_tp:
        joined = EXCHANGES[engine][spec.written.engine_version or ""][phase].without_nics(joined)
    return gpu.device == "cuda" and section.ep_size > max(spec.cluster.gpus_per_node, joined)


def _is_on_gpus(spec: Spec) -> bool:
    return any(spec.device(phase) == "cuda" for phase in spec.phases)

"""Warnings about a spec that is right, but hardly does what was meant.

A warning has the four parts of an error: field and value, rule, reason, fix. It changes neither the plan nor the exit
status. What is certainly wrong is an error instead (`spec/layout_rules.py`).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from planner.cluster.inventory import Node, PlaceKind, nodes_for
from planner.estimate.exposed import exposed_by
from planner.estimate.from_others import from_others, image_of_another
from planner.estimate.past_days import past_days
from planner.estimate.plausible import implausible_rates
from planner.estimate.slow_loading import slow_loading
from planner.estimate.without_effect import without_effect
from planner.facts.counted import counted
from planner.facts.engine_models import ENGINE_MODELS
from planner.facts.engines import ENGINES, OURS
from planner.facts.exchange import EXCHANGES
from planner.facts.names import logical_node
from planner.facts.terms import Overlap, Phase
from planner.layout.memory import USUAL_SHARE, MemoryOf, MemoryPlan, in_pages
from planner.problems.errors import Problem, Violation
from planner.problems.fix import HERE, Change, Fix, nearest, nearest_of
from planner.spec.check import ResolvedSpec
from planner.spec.kubernetes import DEFAULT_IMAGE
from planner.spec.phase import PhaseSpec
from planner.spec.schema import Spec
from planner.spec.volume_rules import volume_of

__all__ = ["warnings_of"]

OVERLAPS: dict[Phase, Overlap] = {"prefill": "dual_batch", "decode": "five_stage"}
ANOTHER_RATIO = 1.2  # times as many tokens of output: units then make 4 to 18 % more or fewer (0600)
FEW_TOKENS = 5  # which round by more than a tenth

PLACES: dict[PlaceKind, str] = {"leaf": "leaf", "rack": "rack", "power": "power domain"}


def warnings_of(
    spec: ResolvedSpec, memory: Sequence[MemoryPlan], memory_of: MemoryOf, *, is_runnable: bool
) -> tuple[Problem, ...]:
    """Return every warning about `spec`, whose phases have `memory`, with its line.

    `memory_of` says what a phase of another spec would have. The engine runs the plan where it `is_runnable`.
    """
    nodes = tuple(node for node in nodes_for(spec) if node.unusable is None or node.is_spare)
    found = chain(
        _limits(spec, memory, memory_of),
        _overlaps(spec),
        _unpacked(spec),
        _in_another_precision(spec),
        _larger_nodes(spec),
        implausible_rates(spec),
        _counted_nodes(spec.written),
        _split_racks(spec, nodes),
        _nowhere(nodes),
        _unseen_checkpoint(spec.written),
        _unseen_tokenizer(spec.written),
        _unnamed_weights(spec) if is_runnable else (),
        _folder_of_any_node(spec.written) if is_runnable else (),
        _image_for_cpus(spec.written) if is_runnable else (),
        image_of_another(spec.written),
        from_others(spec) if is_runnable else (),
        _no_rdma(spec),
        _escaped_policies(spec.written),
        _short_drain(spec.written),
        slow_loading(spec, memory),
        _two_hit_rates(spec.written),
        _two_ratios(spec.written),
        without_effect(spec),
        past_days(spec),
        exposed_by(spec.written.kubernetes.overlay),
    )
    return tuple(map(spec.problem, found))


def _limits(spec: ResolvedSpec, memory: Sequence[MemoryPlan], memory_of: MemoryOf) -> Iterator[Violation]:
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
        held = _most_held(spec, plan.phase, memory_of)
        share = f"1/{1 / USUAL_SHARE:.0f} of full length"
        fix = Fix(f"nearest: {held}, so that each has KV for {share}", ({HERE: held},))
        yield Violation(f"{plan.phase}.max_requests", section.max_requests, rule, reason, fix)


def _is_held(plan: MemoryPlan, section: PhaseSpec) -> bool:
    """Return whether there is KV for all requests at the usual share of full length, or for all that is asked for."""
    usual = USUAL_SHARE * section.max_requests * in_pages(plan.max_request_tokens)
    return plan.kv_tokens >= min(usual, section.max_kv_tokens or usual)


def _most_held(spec: ResolvedSpec, phase: Phase, memory_of: MemoryOf) -> int:
    """Return the most requests that KV holds, when their own buffers are taken off it."""

    def is_too_much(max_requests: int) -> bool:
        tried = spec.trying(phase, {"max_requests": max_requests})
        plan = memory_of(tried, phase)
        return plan is not None and not _is_held(plan, tried.phase(phase))

    return bisect_left(range(1, spec.phase(phase).max_requests), True, key=is_too_much)


def _overlaps(spec: ResolvedSpec) -> Iterator[Violation]:
    """Yield overlaps that belong to the other phase: they compute the same, and hide less.

    Nothing is said where the engine overlaps nothing of the model in that phase, which S757 says.
    """
    engine, version = spec.written.engine_name, spec.written.engine_version
    model = ENGINE_MODELS.get(engine, {}).get(version or "", {}).get(spec.model.model_type)
    for phase, own in OVERLAPS.items():
        others = {overlap: other for other, overlap in OVERLAPS.items() if other != phase}
        written = spec.phase(phase).overlap if phase in spec.phases else own
        is_overlapped = model is None or phase in model.overlaps
        if written in others and is_overlapped and own in ENGINES[engine].overlaps:
            rule = f"W102 is meant for {others[written]}, and {own} is meant for {phase}"
            reason = (
                "dual_batch hides dispatch behind a second micro-batch, and five_stage behind attention in two parts"
            )
            yield Violation(f"{phase}.overlap", written, rule, reason, nearest(own))


def _unpacked(spec: ResolvedSpec) -> Iterator[Violation]:
    """Yield FP4 weights on GPUs whose matmuls take nothing smaller than 8 bits."""
    for phase in spec.phases:
        precision = spec.phase(phase).precision
        if "fp4" in precision and spec.gpu_of(phase).lacks_fp4:
            rule = f"W105 has no matmuls on {spec.written.gpu_name(phase)}"
            reason = "weights stay as small in memory, but are unpacked for each matmul, which costs time"
            fix = "plan with a checkpoint in fp8, or on GPUs that compute in FP4"
            yield Violation(f"{phase}.precision", precision, rule, reason, fix)


def _in_another_precision(spec: ResolvedSpec) -> Iterator[Violation]:
    """Yield precisions that the checkpoint's own config.json contradicts.

    An entry of the catalog is left out, since checkpoints of that model are published in several precisions.
    """
    other, own = spec.other_quantization, spec.model.weights_in
    if other is None and (own == "bf16" or isinstance(spec.written.model, str) or spec.written.model.config is None):
        return
    said, fix = spec.model.quantisation.words, nearest(own)
    for phase in spec.phases:
        precision = spec.phase(phase).precision
        if other is not None or precision != own:
            rule = f"W113 is not what the checkpoint says ({other or said})"
            reason = f"memory is planned for weights in {precision}, and this checkpoint's are others"
            other_fix = "give the config.json of the checkpoint that is meant"
            yield Violation(f"{phase}.precision", precision, rule, reason, other_fix if other else fix)


def _larger_nodes(spec: ResolvedSpec) -> Iterator[Violation]:
    """Yield nodes of more GPUs than nodes with this GPU have."""
    written, nodes = spec.cluster.gpus_per_node, spec.cluster.nodes
    for _, name, gpu in spec.named_gpus():
        usual = gpu.node_gpus if gpu.nvlink_leaves_node else gpu.nvlink_domain
        if usual is None or written <= usual:
            continue
        rule = f"W112 is more than the {usual} GPUs that nodes with {name} usually have"
        reason = f"the plan takes the links between all {written} GPUs as links inside one node"
        fix: Fix | str = f"write {usual}, and each node by itself"
        if isinstance(nodes, int) and written % usual == 0:
            more = nodes * (written // usual)
            change = {HERE: usual, "cluster.nodes": more}
            fix = Fix(f"write gpus_per_node: {usual} and nodes: {more}", (change,))
        yield Violation("cluster.gpus_per_node", written, rule, reason, fix)
        return


def _counted_nodes(spec: Spec) -> Iterator[Violation]:
    """Yield a number of nodes where pods will be bound to nodes by name: tidemill invents the names.

    A spec without a checkpoint is only planned.
    """
    nodes = spec.cluster.nodes
    if isinstance(nodes, int) and spec.checkpoint and _is_on_gpus(spec):
        names = logical_node(0) if nodes == 1 else f"{logical_node(0)} to {logical_node(nodes - 1)}"
        rule = f"W116 names no nodes, so pods are bound to nodes called {names}"
        fix = "list your nodes by name under cluster.nodes; tidemill doctor checks the names in the cluster"
        yield Violation("cluster.nodes", nodes, rule, "a pod stays pending until a node has that name", fix)


def _split_racks(spec: ResolvedSpec, nodes: Sequence[Node]) -> Iterator[Violation]:
    """Yield racks with nodes under two leaf switches, which may well be a slip in one node or in a size."""
    leaves_of: dict[str, Counter[str]] = {}
    for node in nodes:
        if node.rack and node.leaf:
            leaves_of.setdefault(node.rack, Counter())[node.leaf] += 1
    split = {rack: leaves for rack, leaves in leaves_of.items() if len(leaves) > 1}
    if split:
        rack, leaves = next(iter(split.items()))
        rule = f"W103 splits {rack} between {' and '.join(leaves)}"
        rule += f", and {len(split) - 1} more of {len(leaves_of)} racks between leaves" if len(split) > 1 else ""
        reason = "a unit in such a rack must send its traffic over the spine between leaf switches"
        path, value, fix = _one_leaf_a_rack(spec, nodes, split)
        yield Violation(path, value, rule, reason, fix)


def _one_leaf_a_rack(
    spec: ResolvedSpec, nodes: Sequence[Node], split: Mapping[str, Counter[str]]
) -> tuple[str, int | str, Fix]:
    """Return where a rack is put under two leaves, what stands there, and what would put each under one."""
    rack_size, leaf_size = spec.cluster.rack_size, spec.cluster.leaf_size
    if rack_size and leaf_size:
        below = leaf_size - leaf_size % rack_size
        return "cluster.leaf_size", leaf_size, nearest_of(leaf_size, [below or rack_size, below + rack_size])
    most = {rack: max(leaves, key=leaves.__getitem__) for rack, leaves in split.items()}
    strays = [node for node in nodes if node.rack in split and node.leaf and node.leaf != most[node.rack]]
    change: Change = {f"cluster.nodes.{node.index}.leaf": most[node.rack] for node in strays}
    first = most[strays[0].rack]
    more = f"{len(strays) - 1} more node{'' if len(strays) == 2 else 's'}"
    words = (
        f"write {first}, and in {more} the leaf that most of its rack has" if len(strays) > 1 else f"nearest: {first}"
    )
    return f"cluster.nodes.{strays[0].index}.leaf", strays[0].leaf, Fix(words, (change,))


def _nowhere(nodes: Sequence[Node]) -> Iterator[Violation]:
    """Yield places that some nodes of a list name, and others do not."""
    for kind, called in PLACES.items():
        silent = [node for node in nodes if not getattr(node, kind)]
        if 0 < len(silent) < len(nodes):
            rule = f"W104 is missing in {len(silent)} of {len(nodes)} nodes"
            reason = f"a node without one counts as a {called} of its own"
            path = f"cluster.nodes.{silent[0].index}.{kind}"
            yield Violation(path, None, rule, reason, f"write {kind} for each node, or for none")


def _unseen_checkpoint(spec: Spec) -> Iterator[Violation]:
    """Yield a folder of weights that pods on GPUs do not mount; the image may hold it, but seldom does."""
    path, kubernetes = spec.checkpoint, spec.kubernetes
    is_mounted = path is None or volume_of(path, [volume.model_dump() for volume in kubernetes.volumes]) is not None
    if _is_on_gpus(spec) and path is not None and not is_mounted and kubernetes.stage is None:
        rule = "W106 is in none of kubernetes.volumes"
        reason = "pods see only the volumes they mount, and images rarely contain weights"
        yield Violation("model.checkpoint", path, rule, reason, "add the volume that it is on to kubernetes.volumes")


def _unnamed_weights(spec: ResolvedSpec) -> Iterator[Violation]:
    """Yield a checkpoint whose weights the plan does not name; a bundled one has its manifest beside them."""
    model, is_ours = spec.written.model, spec.written.engine_name == "tidemill"
    path = spec.written.checkpoint or "bundled:"
    if isinstance(model, str) or path.startswith("bundled:") or spec.weights_digest is not None or not is_ours:
        return
    rule = "W143 has no manifest that the plan knows"
    reason = "ranks compare what they read with each other alone, and nobody notices when all of it is wrong"
    give = "write its digest in model.weights_digest" if model.config is None else "have it beside model.config"
    fix = f"write one with tidemill checkpoint digest {path}, and {give}"
    yield Violation("model.checkpoint", path, rule, reason, fix)


def _unseen_tokenizer(spec: Spec) -> Iterator[Violation]:
    """Yield a checkpoint whose tokenizer is on no volume that the gateway mounts of its own."""
    read, own = _read_by_gateway(spec), [volume.model_dump() for volume in spec.kubernetes.gateway.volumes or ()]
    if read is not None and own and volume_of(read, own) is None:
        rule = "W106 is in none of kubernetes.gateway.volumes"
        reason = "of the checkpoint the gateway reads config.json and the tokenizer's files"
        fix = "add a volume with them to kubernetes.gateway.volumes, or write [] if they are in its image"
        yield Violation("model.checkpoint", spec.checkpoint, rule, reason, fix)


def _folder_of_any_node(spec: Spec) -> Iterator[Violation]:
    """Yield a folder of nodes that the gateway mounts as units do, where nothing says that it runs on such nodes."""
    kubernetes, read = spec.kubernetes, _read_by_gateway(spec)
    if read is None:
        return
    index = volume_of(read, [volume.model_dump() for volume in kubernetes.volumes])
    overlay = kubernetes.overlay
    is_told = kubernetes.gateway.volumes is not None or (overlay is not None and overlay.gateway_pod)
    if index is not None and (folder := kubernetes.volumes[index].host_path) and not is_told:
        rule = "W133 is a folder on nodes, and the gateway mounts it too, on any node of the cluster"
        reason = "the gateway's pod does not start on a node without this folder"
        fix = (
            "select nodes that have it with kubernetes.overlay.gateway_pod.spec.nodeSelector, "
            "or give the gateway other volumes in kubernetes.gateway.volumes"
        )
        yield Violation(f"kubernetes.volumes.{index}.host_path", folder, rule, reason, fix)


def _read_by_gateway(spec: Spec) -> str | None:
    """Return the folder from which our gateway reads the tokenizer; None where units on GPUs have no such gateway.

    It reads where the ranks read. Of a staged checkpoint it sees the original, unless it mounts volumes of its own.
    """
    if not _is_on_gpus(spec) or spec.checkpoint is None or spec.engine_name != "tidemill":
        return None
    stage, own = spec.kubernetes.stage, spec.kubernetes.gateway.volumes
    return stage.source if stage is not None and own is None else spec.checkpoint


def _image_for_cpus(spec: Spec) -> Iterator[Violation]:
    """Yield the default image when units run on GPUs: it has no GPU kernels."""
    image = spec.kubernetes.image
    if _is_on_gpus(spec) and spec.checkpoint and spec.engine_name == "tidemill" and image == DEFAULT_IMAGE:
        rule, reason = "W107 is the image for CPUs", "the image with GPU kernels is built from Containerfile.gpu"
        yield Violation("kubernetes.image", image, rule, reason, "build that image and name it in kubernetes.image")


def _no_rdma(spec: ResolvedSpec) -> Iterator[Violation]:
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
        yield Violation("kubernetes.rdma", None, rule, reason, fix)


def _escaped_policies(spec: Spec) -> Iterator[Violation]:
    """Yield pods on the network of their nodes, where no NetworkPolicy holds."""
    if spec.kubernetes.host_network and spec.kubernetes.network_policies:
        rule = "W119 exempts the pods of units from NetworkPolicies"
        reason = "whoever can reach the nodes can reach the ranks' ports, and collectives have no authentication"
        fix = "protect the nodes with a firewall, or remove it and give pods their NICs with kubernetes.rdma"
        yield Violation("kubernetes.host_network", True, rule, reason, fix)


def _short_drain(spec: Spec) -> Iterator[Violation]:
    """Yield pods that get less time for their answers than the day pays their nodes for."""
    drain, paid = spec.kubernetes.drain, spec.paid_drain_s
    if drain is not None and paid is not None and drain < paid:
        rule = f"W125 is less than schedule.drain ({paid:g} s)"
        reason = "the controller cuts off longer answers, although their unit keeps its nodes for all of schedule.drain"
        fix = Fix("remove it, so that schedule.drain applies", ({HERE: None},))
        yield Violation("kubernetes.drain", drain, rule, reason, fix)


def _two_hit_rates(spec: Spec) -> Iterator[Violation]:
    """Yield an operating point that has another hit rate than the day."""
    traffic, point = spec.traffic, spec.operating_point.prefill
    if point is None or point.cache_hit_rate is None or traffic is None:
        return
    at_point, of_day = point.cache_hit_rate, traffic.cache_hit_rate
    if at_point != of_day:
        rule = f"W140 is not traffic.cache_hit_rate ({of_day:g})"
        reason = "speed is predicted with one, and the day's traffic is counted with the other"
        words = f"nearest: {of_day:g}, or traffic.cache_hit_rate {at_point:g}"
        fix = Fix(words, ({HERE: of_day}, {"traffic.cache_hit_rate": at_point}))
        yield Violation("operating_point.prefill.cache_hit_rate", at_point, rule, reason, fix)


def _two_ratios(spec: Spec) -> Iterator[Violation]:
    """Yield an operating point of mixed units whose requests are clearly not the traffic's."""
    traffic, point = spec.traffic, spec.operating_point.mixed
    if point is None or traffic is None:
        return
    of_day = traffic.output_tokens / traffic.input_tokens
    ratio = point.output_tokens / point.prompt_tokens / of_day
    if max(ratio, 1 / ratio) <= ANOTHER_RATIO:
        return
    rule = f"W142 is {point.output_tokens / point.prompt_tokens:.3g} for each prompt token, and {of_day:.3g} in traffic"
    reason = "units make fewer tokens of output, the more prompts they compute, and are predicted with the point's"
    outputs = round(point.prompt_tokens * of_day)
    fix = nearest(outputs) if outputs >= FEW_TOKENS else "write the mean prompt and answer of the traffic"
    yield Violation("operating_point.mixed.output_tokens", point.output_tokens, rule, reason, fix)


def _leaves_nvlink(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether GPUs of one unit of `phase` reach each other by NICs only."""
    gpu, section, engine = spec.gpu_of(phase), spec.phase(phase), spec.written.engine_name
    joined = 1 if spec.written.kubernetes.compute_domain is False else gpu.domain_size(spec.cluster.gpus_per_node)
    if engine != OURS and section.ep_size != section.attention_tp:
        joined = EXCHANGES[engine][spec.written.engine_version or ""][phase].without_nics(joined)
    return gpu.device == "cuda" and section.ep_size > max(spec.cluster.gpus_per_node, joined)


def _is_on_gpus(spec: Spec) -> bool:
    return any(spec.device(phase) == "cuda" for phase in spec.phases)

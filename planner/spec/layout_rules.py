"""The rules between fields: what no field can know about itself.

Each rule is a pure function of the values it names, declared with their paths; the first is the value it is about.
It is asked only when all of them are right by themselves, so one mistake gives one message and does not hide the next.
`{phase}` in a path asks the rule once for each phase. `model.shapes`, `cluster.gpu`, ... are as
`check.py` resolved them: already read from the catalog or the files.

A rule does not repair, and does not ask whether the cluster is large enough: that is not a mistake in the spec but
infeasible, and `placement.py` says so.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, get_args

from planner.facts import names
from planner.facts.catalog import Model
from planner.facts.loads import Loads
from planner.facts.terms import PHASES, KvPrecision, Phase, Precision
from planner.problems.errors import Violation
from planner.problems.fix import Change, Fix, nearest, nearest_of, removal
from planner.spec import attention_rules, cluster_rules, model_rules
from planner.spec.precision import kv_dtype
from planner.spec.rule import Broken, Partial, Rule, declare_in
from planner.spec.schema import AUTO, MAX_EP_SIZE

__all__ = ["broken_rules"]

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
MAX_DNS_LABEL = 63
MAX_DNS_NAME = 253

RULES: list[Rule] = []
_reads = declare_in(RULES)


def broken_rules(values: Mapping[str, Any], about: str | None = None) -> Iterator[Violation]:
    """Every broken rule whose arguments are all in `values`; only those `about` a field, where one is given."""
    for rule in [*RULES, *model_rules.RULES, *attention_rules.RULES, *cluster_rules.RULES]:
        for paths in _readings(rule):
            if about not in (None, paths[0]):
                continue
            for broken in rule.verdicts(paths, values):
                yield _violation(broken, paths[0], values[paths[0]])


def _violation(broken: Broken, path: str, value: Any) -> Violation:
    if broken.path is not None:
        path, value = broken.path, broken.value
    return Violation(path, value, broken.rule, broken.reason, broken.fix)


def _readings(rule: Rule) -> list[tuple[str, ...]]:
    if "{phase}" not in "".join(rule.reads):
        return [rule.reads]
    return [tuple(path.format(phase=phase) for path in rule.reads) for phase in PHASES]


# Names


@_reads("name")
def name_is_a_dns_label(name: str) -> Broken | None:
    """Units, Services and LeaderWorkerSets are named after it."""
    if DNS_1035.fullmatch(name):
        return None
    rule = "S401 must be lower-case letters, digits and hyphens, from a letter to a letter or digit (DNS-1035)"
    return Broken(rule, "Kubernetes objects are named after it", nearest(_slug(name)))


@_reads("name", "spec.units")
def unit_names_fit(name: str, num_units: Mapping[Phase, int]) -> Broken | None:
    """The longest name of a unit is that of the last one of a phase."""
    longest = max((names.unit_name(name, phase, number - 1) for phase, number in num_units.items()), key=len)
    room = names.MAX_UNIT_NAME - (len(longest) - len(name))
    if len(name) <= room:
        return None
    rule = f"S402 must have at most {room} characters, it has {len(name)}"
    reason = f"a LeaderWorkerSet's name has at most {names.MAX_UNIT_NAME}, {longest[len(name) :]} included"
    return Broken(rule, reason, nearest(_slug(name)[:room].rstrip("-")))


@_reads("kubernetes.namespace")
def namespace_is_a_dns_label(namespace: str) -> Broken | None:
    """As the API server will insist."""
    if DNS_1123.fullmatch(namespace) and len(namespace) <= MAX_DNS_LABEL:
        return None
    rule = f"S403 must be at most {MAX_DNS_LABEL} lower-case letters, digits and hyphens (DNS-1123)"
    return Broken(rule, "Kubernetes takes no other namespace", nearest(_slug(namespace)))


@_reads("kubernetes.image")
def image_is_one_word(image: str) -> Broken | None:
    """An image reference has no spaces; whether it exists only the cluster knows."""
    without_spaces = "".join(image.split())
    if image == without_spaces:
        return None
    rule = "S404 must be an image reference without spaces"
    return Broken(rule, "nodes could not pull it", nearest(without_spaces))


@_reads("gateway.port")
def ports_differ(port: int) -> Broken | None:
    """The gateway listens for clients, ranks and metrics on one address."""
    taken = {names.Ports.REGISTRY: "the ranks' registry", names.Ports.METRICS: "metrics"}
    if port not in taken:
        return None
    others = " and ".join(str(other) for other in taken)
    reason = f"the gateway listens there for {taken[port]}"
    return Broken(f"S405 must differ from {others}", reason, nearest(port + 1))


@_reads("kubernetes.image_pull_secrets")
def pull_secrets_are_names(secrets: Sequence[str]) -> Iterator[Broken]:
    """As the API server will insist."""
    for index, name in enumerate(secrets):
        if not _is_object_name(name):
            yield _no_object_name(f"kubernetes.image_pull_secrets.{index}", name)


@_reads("kubernetes.volumes")
def claims_are_names(volumes: Sequence[Mapping[str, Any]]) -> Iterator[Broken]:
    """As the API server will insist."""
    for index, volume in enumerate(volumes):
        claim = volume.get("claim")
        if claim is not None and not _is_object_name(claim):
            yield _no_object_name(f"kubernetes.volumes.{index}.claim", claim)


def _no_object_name(path: str, name: str) -> Broken:
    rule = f"S415 must be at most {MAX_DNS_NAME} lower-case letters, digits, hyphens and dots (DNS-1123)"
    return Broken(rule, "Kubernetes has no object of another name", nearest(_slug(name)), path, name)


def _is_object_name(name: str) -> bool:
    return len(name) <= MAX_DNS_NAME and all(DNS_1123.fullmatch(label) for label in name.split("."))


# Volumes

Volumes = Sequence[Mapping[str, Any]]  # as written


@_reads("kubernetes.volumes")
def volumes_have_one_source(volumes: Volumes) -> Iterator[Broken]:
    """A folder of the nodes or a claim."""
    for index, volume in enumerate(volumes):
        path = f"kubernetes.volumes.{index}"
        given = [key for key in ("host_path", "claim") if volume.get(key) is not None]
        if len(given) == 2:
            fix = Fix("remove host_path or claim", tuple({f"{path}.{key}": None} for key in given))
        else:
            fix = Fix("for example host_path: /mnt/models", ({f"{path}.host_path": "/mnt/models"},))
        if len(given) != 1 and not isinstance(volume, Partial):
            rule, found = "S411 must come with either host_path or claim", "both" if given else "neither"
            yield Broken(rule, f"it has {found}", fix, f"{path}.mount_path", volume["mount_path"])


@_reads("kubernetes.volumes")
def volume_paths_are_absolute(volumes: Volumes) -> Iterator[Broken]:
    """Neither a pod nor a node has a current folder."""
    for index, volume in enumerate(volumes):
        for key in ("mount_path", "host_path"):
            path = volume.get(key)
            if path is not None and not _is_absolute(path):
                rule = "S412 must be an absolute path below /, without .. or a closing /"
                reason, fix = "pods and nodes have no current folder", nearest(_absolute(path))
                yield Broken(rule, reason, fix, f"kubernetes.volumes.{index}.{key}", path)


@_reads("kubernetes.volumes")
def mount_paths_are_free(volumes: Volumes) -> Iterator[Broken]:
    """Not over what the pods have already."""
    for index, volume in enumerate(volumes):
        if volume.get("mount_path") in names.MOUNTED:
            rule, fix = f"S413 must not be {' or '.join(names.MOUNTED)}", nearest(_free_path("/models", volumes))
            path = f"kubernetes.volumes.{index}.mount_path"
            yield Broken(rule, "the pod's own files are there", fix, path, volume["mount_path"])


@_reads("kubernetes.volumes")
def mount_paths_differ(volumes: Volumes) -> Iterator[Broken]:
    """One path shows one volume."""
    paths = [volume.get("mount_path") for volume in volumes]
    for index, path in enumerate(paths):
        if path is not None and path in paths[:index]:
            rule = f"S414 must differ from kubernetes.volumes.{paths.index(path)}.mount_path"
            where = f"kubernetes.volumes.{index}.mount_path"
            yield Broken(rule, "a path shows one volume", nearest(_free_path(path, volumes)), where, path)


# Layout


@_reads(
    *("{phase}.ep_size", "{phase}.redundant_experts", "model.shapes"),
    *("cluster.gpus_per_node?", "{phase}.room?", "{phase}.as_written?"),
)
def ep_size_divides_physical_experts(
    ep_size: int, redundant: int, model: Model, gpus_per_node: int | None, room: int | None, phase: Phase | None
) -> Broken | None:
    """Every GPU of a unit holds equally many slots: the dispatch kernels count on it.

    The fix keeps the GPUs of a `phase` that someone wrote and changes its redundant experts. Where a unit cannot have
    so many GPUs, or nobody wrote the number, it changes the GPUs.
    """
    num_logical = model.num_routed_experts
    num_physical = num_logical + redundant
    if num_physical % ep_size == 0:
        return None
    rule = f"S501 must divide num_physical_experts ({num_physical} = {num_logical} + {redundant} redundant)"
    reason = "all GPUs of a unit hold equally many experts"
    is_kept = phase is not None and _is_whole_nodes(ep_size, gpus_per_node)
    numbers = _even_redundant(ep_size, redundant, num_logical) if is_kept else []
    if not numbers:
        return Broken(rule, reason, nearest_of(ep_size, _ep_sizes(num_physical, gpus_per_node, room)))
    path = f"{phase}.redundant_experts"
    words = f"nearest: redundant_experts: {' or '.join(map(str, numbers))}"
    return Broken(rule, reason, Fix(words, tuple({path: number} for number in numbers)))


@_reads("{phase}.ep_size", "cluster.gpus_per_node", "{phase}.redundant_experts?", "model.shapes?", "{phase}.room?")
def unit_fills_whole_nodes(
    ep_size: int, gpus_per_node: int, redundant: int | None, model: Model | None, room: int | None
) -> Broken | None:
    """Nodes are not shared between units, and ranks are spread evenly over a unit's nodes."""
    if _is_whole_nodes(ep_size, gpus_per_node):
        return None
    num_physical = None if redundant is None or model is None else model.num_routed_experts + redundant
    rule = f"S502 must be a multiple of gpus_per_node ({gpus_per_node}) or fit on one node"
    sizes = _ep_sizes(num_physical, gpus_per_node, room)
    return Broken(rule, "a unit has its nodes to itself", nearest_of(ep_size, sizes))


@_reads("{phase}.redundant_experts", "{phase}.ep_size", "model.shapes")
def replicas_have_gpus_of_their_own(redundant: int, ep_size: int, model: Model) -> Broken | None:
    """At most one replica of an expert on each GPU."""
    most = model.num_routed_experts * (ep_size - 1)
    if redundant <= most:
        return None
    rule = f"S503 must be at most {most} ({model.num_routed_experts} experts x {ep_size - 1} further GPUs)"
    return Broken(rule, "a second replica on the same GPU shares no load", nearest(most))


@_reads("{phase}.max_request_tokens", "model.shapes")
def requests_fit_the_model(max_request_tokens: int, model: Model) -> Broken | None:
    """Beyond its positions a model answers nonsense."""
    most = model.max_position_embeddings
    if max_request_tokens <= most:
        return None
    rule = f"S504 must be at most max_position_embeddings ({most})"
    return Broken(rule, "the model knows no later positions", nearest(most))


@_reads("{phase}.max_kv_tokens", "{phase}.max_request_tokens")
def kv_holds_a_request(max_kv_tokens: int | None, max_request_tokens: int) -> Broken | None:
    """Else a request could wait for ever."""
    if max_kv_tokens is None or max_kv_tokens >= max_request_tokens:
        return None
    rule = f"S517 must be at least max_request_tokens ({max_request_tokens})"
    return Broken(rule, "a request needs all its KV at a time", nearest(max_request_tokens))


# Prefill and decode together


@_reads("version", "spec.sections")
def phases_are_a_whole(_: int, sections: frozenset[str]) -> Broken | None:
    """Prompts are computed and tokens produced, somewhere, once."""
    given = [phase for phase in PHASES if phase in sections]
    if given in (["prefill", "decode"], ["mixed"]):
        return None
    if "mixed" in given:
        others = given[:-1]
        rule = f"S507 must stand alone, not with {' and '.join(others)}"
        fix = removal(*others)
        if len(others) == 2:  # without mixed they are a whole
            fix = Fix(f"remove mixed, or {' and '.join(others)}", (*removal("mixed").changes, *fix.changes))
        return Broken(rule, "a mixed unit does both", fix, path="mixed")
    missing = "decode" if "prefill" in given else "prefill"
    rule = "S507 is required, unless mixed stands instead of prefill and decode"
    sections_missing: Change = {phase: {"ep_size": AUTO} for phase in PHASES[:2] if phase not in given}
    words = " and ".join(f"{phase}: {{ep_size: {AUTO}}}" for phase in sections_missing)
    fix = Fix(f"for example {words}", (sections_missing,))
    return Broken(rule, "a request passes through both", fix, path=missing)


@_reads("decode.max_request_tokens", "prefill.max_request_tokens")
def phases_take_equal_requests(decode: int, prefill: int) -> Broken | None:
    """A request that prefill takes must fit where it goes on."""
    if decode == prefill:
        return None
    rule = f"S505 must equal prefill.max_request_tokens ({prefill})"
    return Broken(rule, "every request passes through both phases", nearest(prefill))


@_reads("decode.precision", "prefill.precision", "decode.kv_precision", "prefill.kv_precision")
def phases_exchange_kv(
    decode: Precision, prefill: Precision, decode_kv: KvPrecision | None, prefill_kv: KvPrecision | None
) -> Broken | None:
    """KV travels as it lies in memory: no conversion on the way."""
    kept, sent = kv_dtype(decode, decode_kv), kv_dtype(prefill, prefill_kv)
    if kept == sent:
        return None
    rule = f"S506 must keep KV as prefill does ({sent}), it keeps {kept}"
    if not (decode_kv or prefill_kv):
        return Broken(rule, f"prefill.precision is {prefill}, and KV is sent as it lies in memory", nearest(prefill))
    alike = [each for each in dict.fromkeys((decode_kv, prefill_kv, kept, sent)) if each in get_args(KvPrecision)]
    changes = tuple({"decode.kv_precision": each, "prefill.kv_precision": each} for each in alike)
    fix = Fix(f"write kv_precision: {' or '.join(map(str, alike))} in both", changes)
    return Broken(rule, "KV is sent as it lies in memory", fix, "decode.kv_precision", decode_kv)


# Expert load


@_reads("expert_load.file", "expert_load.given")
def loads_have_one_origin(file: str | None, given: frozenset[str]) -> Broken | None:
    """Measured or drawn, not both."""
    drawn = sorted(given - {"file"})
    if file is None or not drawn:
        return None
    others = " and ".join(drawn)
    fix = removal(*(f"expert_load.{key}" for key in drawn), words=f"remove {others}")
    return Broken(f"S601 must stand alone, not with {others}", "a file leaves nothing to draw", fix)


@_reads("expert_load.file", "expert_load.loads", "model.shapes")
def loads_match_the_model(_: str, loads: Loads, model: Model) -> Broken | None:
    """One row an MoE layer, one column a logical expert."""
    wanted = (model.num_moe_layers, model.num_routed_experts)
    found = (len(loads), len(loads[0]))
    if found == wanted:
        return None
    rule = (
        f"S602 must have shape [{wanted[0]}][{wanted[1]}] (MoE layers, routed experts), it has [{found[0]}][{found[1]}]"
    )
    return Broken(rule, "each expert of each layer has a load of its own", "measure it on this model")


def _is_whole_nodes(ep_size: int, gpus_per_node: int | None) -> bool:
    """Whether a unit fills its nodes, or fits on one; True where nobody knows what a node has."""
    return gpus_per_node is None or ep_size <= gpus_per_node or ep_size % gpus_per_node == 0


def _even_redundant(ep_size: int, redundant: int, num_logical: int) -> list[int]:
    """The redundant experts on both sides that fill all GPUs evenly; none that add a replica for every expert."""
    above = redundant + -(num_logical + redundant) % ep_size
    return [number for number in (above - ep_size, above) if 0 <= number < redundant + num_logical]


def _ep_sizes(num_physical: int | None, gpus_per_node: int | None, room: int | None) -> list[int]:
    """Sizes that spread experts evenly over whole nodes, within the `room` that there is.

    Every size spreads a number of experts that nobody knows.
    """
    even = [
        size
        for size in range(1, min(num_physical or MAX_EP_SIZE, MAX_EP_SIZE) + 1)
        if (num_physical or 0) % size == 0 and (not gpus_per_node or size <= gpus_per_node or size % gpus_per_node == 0)
    ]
    return [size for size in even if room is None or size <= room] or even


def _free_path(path: str, volumes: Volumes) -> str:
    """`path`, or with the first number behind it that makes it the only one."""
    taken = {volume.get("mount_path") for volume in volumes}
    return next(each for each in chain([path], (f"{path}-{number}" for number in count(2))) if each not in taken)


def _is_absolute(path: str) -> bool:
    """Without `..`, double or closing slashes, so that one place has one name."""
    return path.startswith("/") and path == posixpath.normpath(path) != "/"


def _absolute(path: str) -> str:
    """The absolute path that was probably meant."""
    nearest = posixpath.normpath("/" + path.lstrip("/"))
    return "/models" if nearest == "/" else nearest


def _slug(text: str) -> str:
    """`text` as a DNS label, for a fix."""
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).lstrip("-0123456789")[:MAX_DNS_LABEL].rstrip("-")
    return slug or "tidemill"

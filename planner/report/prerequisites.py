"""List what a plan needs from the cluster that planning cannot check: node names, folders, images, weights.

None of these is a mistake in the plan. A reader compares them with the cluster before deploying it; `tidemill doctor`
checks those that the cluster can show.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from planner.facts import names
from planner.facts.catalog import GPUS
from planner.facts.engine_models import ENGINE_MODELS
from planner.facts.engines import ENGINES, OURS
from planner.layout.nodes import nodes_of
from planner.plan.plan import Plan
from planner.spec.kubernetes import DEFAULT_IMAGE
from planner.spec.pods import volume_of
from planner.spec.schema import Spec


def prerequisites(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield (what, value, consequence) for each thing that the plan needs and that planning cannot check.

    Without a checkpoint, or on CPUs only, there are no prerequisites about pods.
    """
    spec = plan.spec
    yield from chain(_split_racks(spec), _widened_weights(spec), _engine_maps(plan))
    if spec.checkpoint is None or all(spec.device(phase) != "cuda" for phase in spec.phases):
        return
    yield from _counted_nodes(spec)
    if plan.runnable:
        yield from _unnamed_weights(spec, plan.launch_documents[names.GATEWAY_LAUNCH_FILE]["checkpoint"])
        yield from _gateway_folder(spec)
        yield from _guessed_images(spec)


def _split_racks(spec: Spec) -> Iterator[tuple[str, str, str]]:
    """Yield a prerequisite if racks have several leaf switches, because traffic in such a rack uses the spine."""
    leaves_of: dict[str, Counter[str]] = {}
    for node in nodes_of(spec.cluster, spec.gpu_names, spec.kubernetes.tolerations):
        if node.rack and node.leaf and (node.unusable is None or node.is_spare):
            leaves_of.setdefault(node.rack, Counter())[node.leaf] += 1
    split = {rack: leaves for rack, leaves in leaves_of.items() if len(leaves) > 1}
    if split:
        rack, leaves = next(iter(split.items()))
        more = f" and {len(split) - 1} more of {len(leaves_of)}" if len(split) > 1 else ""
        yield "racks under several leaves", f"{rack} ({' and '.join(leaves)}){more}", "units there use the spine"


def _widened_weights(spec: Spec) -> Iterator[tuple[str, str, str]]:
    """Yield a prerequisite for each phase with FP4 weights on a GPU type without FP4 matmuls."""
    for phase in spec.phases:
        gpu, precision = GPUS.get(spec.gpu_name(phase)), spec.phase(phase).precision
        if gpu is not None and "fp4" in precision and gpu.lacks_fp4:
            means = "this GPU unpacks it for each matmul, and the predicted speed leaves out that time"
            yield f"{phase}.precision", precision, means


def _engine_maps(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield a prerequisite if the engine reads no expert map: then it may balance experts worse than the plan says."""
    name, version = plan.spec.engine_name, plan.spec.engine_version or ""
    if ENGINES[name].reads_map:
        return
    model = ENGINE_MODELS[name][version].get(plan.model.model_type)
    how = "it starts with experts in order, and moves them by loads that it measures itself"
    if model is not None and not model.replicas:
        how = f"it moves no experts of {model.architecture}: they stay in order"
    yield "expert maps", f"{name} reads none", f"{how}. What is said of maps is the best that any could reach"


def _counted_nodes(spec: Spec) -> Iterator[tuple[str, str, str]]:
    """Yield a prerequisite on the node names that the planner made up, if the spec gives only a number of nodes."""
    nodes = spec.cluster.nodes
    if isinstance(nodes, int):
        last = f" to {names.logical_node(nodes - 1)}" if nodes > 1 else ""
        why = "a pod stays pending until a node has its name; cluster.nodes lists others"
        yield "node names", f"{names.logical_node(0)}{last}", why


def _unnamed_weights(spec: Spec, checkpoint: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield a prerequisite on the checkpoint's weights if their digest is not known."""
    if spec.engine_name == OURS and checkpoint["weights_digest"] is None:
        effect = "no digest is known, so ranks only compare what they read; tidemill checkpoint digest computes one"
        yield "weights", str(spec.checkpoint), effect


def _gateway_folder(spec: Spec) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, path, consequence) for the host folder that the gateway's node must have.

    Nothing if the spec sets the gateway's own volumes, or an overlay of its pod.
    """
    kubernetes, stage = spec.kubernetes, spec.kubernetes.stage
    is_pinned = kubernetes.gateway.volumes is not None or (kubernetes.overlay and kubernetes.overlay.gateway_pod)
    if is_pinned or spec.engine_name != OURS or spec.checkpoint is None:
        return
    read = stage.source if stage is not None else spec.checkpoint
    index = volume_of(read, [volume.model_dump() for volume in kubernetes.volumes])
    if index is not None and (folder := kubernetes.volumes[index].host_path):
        yield "folder", folder, "the gateway starts only on a node that has it, or with kubernetes.gateway.volumes"


def _guessed_images(spec: Spec) -> Iterator[tuple[str, str, str]]:
    """Yield a prerequisite for each default image of another engine. Its name is guessed from earlier versions."""
    kubernetes, engine = spec.kubernetes, ENGINES[spec.engine_name]
    images = {"kubernetes.image": engine.image} if kubernetes.image == DEFAULT_IMAGE else {}
    if kubernetes.gateway.image is None:
        images["kubernetes.gateway.image"] = engine.router_image
    if kubernetes.gateway.edge_image is None:
        images["kubernetes.gateway.edge_image"] = engine.edge_image
    for field, image in images.items():
        if image is not None:
            name = image.format(version=spec.engine_version)
            yield field, name, f"named after earlier ones of its makers; {field} names one that you have seen"

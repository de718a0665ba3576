"""What a plan relies on that only the cluster can show: names of nodes, folders on them, images, weights.

None of it is a mistake. A reader compares these rows with the cluster before the plan is carried out; `tidemill doctor`
asks the cluster for what it can see.
"""

from collections import Counter
from collections.abc import Iterator

from planner.cluster.inventory import nodes_of
from planner.facts import names
from planner.facts.engines import ENGINES, OURS
from planner.plan.estimated import Estimated
from planner.spec.kubernetes import DEFAULT_IMAGE
from planner.spec.volume_rules import volume_of

__all__ = ["relied_on"]


def relied_on(plan: Estimated) -> Iterator[tuple[str, str]]:
    """Yield what a plan relies on and what that means; nothing of pods where it has no checkpoint or runs on CPUs."""
    yield from _split_racks(plan)
    yield from _widened_weights(plan)
    if plan.spec.checkpoint is None or all(plan.spec.device(phase) != "cuda" for phase in plan.spec.phases):
        return
    yield from _counted_nodes(plan)
    if not plan.refusals:
        yield from _unnamed_weights(plan)
        yield from _folder_of_any_node(plan)
        yield from _guessed_images(plan)


def _split_racks(plan: Estimated) -> Iterator[tuple[str, str]]:
    """Yield racks with nodes under two leaf switches: their units reach each other over the spine."""
    leaves_of: dict[str, Counter[str]] = {}
    for node in nodes_of(plan.spec.cluster, plan.spec.gpu_names, plan.spec.kubernetes.tolerations):
        if node.rack and node.leaf and (node.unusable is None or node.is_spare):
            leaves_of.setdefault(node.rack, Counter())[node.leaf] += 1
    split = {rack: leaves for rack, leaves in leaves_of.items() if len(leaves) > 1}
    if split:
        rack, leaves = next(iter(split.items()))
        more = f" and {len(split) - 1} more of {len(leaves_of)}" if len(split) > 1 else ""
        yield "racks under several leaves", f"{rack} ({' and '.join(leaves)}){more}: units there use the spine"


def _widened_weights(plan: Estimated) -> Iterator[tuple[str, str]]:
    """Yield FP4 weights on GPUs whose matmuls take nothing smaller than 8 bits."""
    for layout in plan.layouts:
        gpu = plan.phase_gpus.get(layout.phase, plan.gpu)
        if "fp4" in layout.precision and gpu.lacks_fp4:
            means = "this GPU unpacks it for each matmul, and the predicted speed leaves out that time"
            yield f"{layout.phase}.precision {layout.precision}", means


def _counted_nodes(plan: Estimated) -> Iterator[tuple[str, str]]:
    """Yield the names that the planner gave to nodes which the spec counts."""
    nodes = plan.spec.cluster.nodes
    if isinstance(nodes, int):
        last = f" to {names.logical_node(nodes - 1)}" if nodes > 1 else ""
        yield "names of nodes", f"{names.logical_node(0)}{last}: a pod stays pending until a node has its name"


def _unnamed_weights(plan: Estimated) -> Iterator[tuple[str, str]]:
    """Yield a checkpoint whose weights the plan does not name; a bundled one has its manifest beside them."""
    checkpoint = plan.launch_documents[names.GATEWAY_LAUNCH_FILE]["checkpoint"]
    if plan.spec.engine_name == OURS and checkpoint["weights_digest"] is None:
        told = "no digest is known, so ranks only compare what they read with each other (tidemill checkpoint digest)"
        yield "weights", f"{plan.spec.checkpoint}: {told}"


def _folder_of_any_node(plan: Estimated) -> Iterator[tuple[str, str]]:
    """Yield a folder that the gateway needs on whatever node it runs, where nothing says which nodes have it."""
    kubernetes, stage = plan.spec.kubernetes, plan.spec.kubernetes.stage
    is_told = kubernetes.gateway.volumes is not None or (kubernetes.overlay and kubernetes.overlay.gateway_pod)
    if is_told or plan.spec.engine_name != OURS or plan.spec.checkpoint is None:
        return
    read = stage.source if stage is not None else plan.spec.checkpoint
    index = volume_of(read, [volume.model_dump() for volume in kubernetes.volumes])
    if index is not None and (folder := kubernetes.volumes[index].host_path):
        yield "folder on nodes", f"{folder}: the gateway starts only on a node that has it (kubernetes.gateway.volumes)"


def _guessed_images(plan: Estimated) -> Iterator[tuple[str, str]]:
    """Yield images of other engines that nobody named: their names follow those of earlier versions."""
    kubernetes, engine = plan.spec.kubernetes, ENGINES[plan.spec.engine_name]
    images = {"kubernetes.image": engine.image} if kubernetes.image == DEFAULT_IMAGE else {}
    if kubernetes.gateway.image is None:
        images["kubernetes.gateway.image"] = engine.router_image
    for field, image in images.items():
        if image is not None:
            name = image.format(version=plan.spec.engine_version)
            yield "image", f"{name}: named after earlier ones of its makers; {field} gives one that you have seen"

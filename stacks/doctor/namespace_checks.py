"""Checks of the plan's namespace: its claims, Secrets and quotas, and whether its pods are admitted. Pure."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal

from planner.facts.quantities import counted
from stacks.doctor.facts import ClusterFacts, Refusal
from stacks.doctor.findings import Check, Finding, split_sentence
from stacks.doctor.needs import Needs, pod_limits, pod_requests, sum_amounts
from stacks.kube.errors import RefusedError
from stacks.kube.manifest import Manifest, Reference, is_ending
from stacks.kube.quantities import Amounts, amount_text, amounts

__all__ = ["claims", "namespace", "pods", "quotas", "required_objects"]

# kind of an object that pods name -> the check that reports it missing, and how to create it
REQUIRED: Mapping[str, tuple[Check, str]] = {
    "PersistentVolumeClaim": ("storage", "create it"),
    "Secret": ("secret", "create it"),
    "PriorityClass": ("priority-class", "create it"),
    "RuntimeClass": ("runtime-class", "create it, with its handler on the nodes"),
    "LocalQueue": ("queue", "create it in Kueue"),
    "NetworkAttachmentDefinition": ("network", "create it"),
}
FOR_MANY_NODES = {"ReadOnlyMany", "ReadWriteMany"}
FOR_WRITERS = {"ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"}

# Host folders, host networks and IPC_LOCK, all that our pods may have beyond `restricted`, are in no other standard.
# Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
PRIVILEGED = "pod-security.kubernetes.io/enforce=privileged"

# What admission plugins write, in kubernetes 1.36: staging/src/k8s.io/pod-security-admission/admission/admission.go;
# staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go.
POD_SECURITY = re.compile(r'violates PodSecurity "(?P<standard>[^"]*)": (?P<why>.*)$', re.DOTALL)
QUOTA = re.compile(r"(?:exceeded|failed) quota: (?P<name>[^,:]+)")
CLASS = re.compile(r"no PriorityClass with name|RuntimeClass .* not found|runtimeclass.* not found", re.IGNORECASE)


def namespace(needs: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a finding if the namespace is being deleted, or if it is missing and the plan does not create it."""
    live, subject = facts.namespace, f"Namespace {needs.namespace}"
    was_seen = all(each.what != "the namespace" for each in facts.read_failures)
    if live is None and not needs.creates_namespace and was_seen:
        fix = f"create it: kubectl create namespace {needs.namespace}; or set kubernetes.create_namespace: true"
        yield Finding("namespace", subject, "it does not exist, and the plan does not create it", fix)
    if live is not None and is_ending(live):
        fix = "wait until it is gone; `up` waits too" if needs.creates_namespace else "wait until it is gone, create it"
        yield Finding("namespace", subject, "it is being deleted", fix, blocks=not needs.creates_namespace)


def required_objects(needs: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a finding for each object that the plan's pods name and that does not exist."""
    for required, found in facts.required_objects.items():
        if found is None:
            check, how = REQUIRED[required.kind]
            if required.namespace and facts.namespace is None and needs.creates_namespace:
                how = "create first the namespace and then it, and set kubernetes.create_namespace: false"
            yield Finding(
                check, str(required), f"it does not exist, and {required.field} names it", f"{how}; or correct the name"
            )


def claims(needs: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a finding for each PersistentVolumeClaim without a volume, or with access modes too narrow for its pods."""
    for required, found in facts.required_objects.items():
        if required.kind != "PersistentVolumeClaim" or found is None:
            continue
        phase = (found.get("status") or {}).get("phase", "Pending")
        modes = (found.get("status") or {}).get("accessModes") or found["spec"].get("accessModes") or []
        num_nodes = len(_nodes_mounting(required.name, needs))
        is_written = any(required.name in each.written_claims for each in needs.pod_sets)
        if is_ending(found):
            yield Finding("storage", str(required), "it is being deleted", "wait until it is gone, and create it again")
        elif phase != "Bound" and not (phase == "Pending" and _waits_for_pods(found, facts)):
            fix = f"see why: kubectl describe pvc {required.name} --namespace {required.namespace}"
            yield Finding("storage", str(required), f"it has no volume: its phase is {phase}", fix)
        elif modes and not (allowed := _allowed_modes(num_nodes, is_written=is_written)).intersection(modes):
            who = f"pods on {counted(num_nodes, 'node')} {'write to' if is_written else 'mount'} it"
            lacks = "does not let them" if is_written else "allows only one node"
            fix = f"create the claim again with {' or '.join(sorted(allowed))}, on storage that can do that"
            yield Finding("storage", str(required), f"{who}, and {', '.join(modes)} {lacks}", fix)


def _allowed_modes(num_nodes: int, *, is_written: bool) -> set[str]:
    """Return the access modes that let pods on `num_nodes` nodes mount a claim and, if `is_written`, write to it."""
    any_node = FOR_MANY_NODES if num_nodes > 1 else FOR_MANY_NODES | FOR_WRITERS
    return any_node & FOR_WRITERS if is_written else any_node


def quotas(needs: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a finding for each quota with too little left for all pods of the plan.

    Pods that an earlier `up` of the plan has started are not counted twice.
    """
    wanted, own = _planned_usage(needs), _current_usage(needs, facts)
    for quota in facts.quotas or ():
        spec, status = quota["spec"], quota.get("status") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue  # only the server knows which pods a scope covers: see the dry-run pod
        hard, used = amounts(status.get("hard") or spec.get("hard")), amounts(status.get("used"))
        taken = {name: max(used.get(name, Decimal(0)) - own.get(name, Decimal(0)), Decimal(0)) for name in hard}
        lacking = {name: wanted[name] for name in hard if name in wanted and taken[name] + wanted[name] > hard[name]}
        if lacking:
            each = [
                f"{name}: {amount_text(amount)} needed, {amount_text(max(hard[name] - taken[name], Decimal(0)))} left"
                for name, amount in lacking.items()
            ]
            raised = ", ".join(f"{name}: {amount_text(taken[name] + amount)}" for name, amount in lacking.items())
            subject = f"ResourceQuota {needs.namespace}/{quota['metadata']['name']}"
            yield Finding("quota", subject, "; ".join(each), f"raise its spec.hard to {raised}")


def pods(needs: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a finding for each reason for which admission refused the dry run of a component's pod."""
    said_quotas = {each.object.rpartition("/")[2] for each in quotas(needs, facts)}
    has_no_class = any(
        found is None for required, found in facts.required_objects.items() if required.kind.endswith("Class")
    )
    violations: dict[str, list[str]] = {}
    for each in facts.pod_refusals:
        assert isinstance(each.error, RefusedError)
        if each.error.is_invalid and _workload_is_refused(each.object, needs, facts):
            continue
        message = each.error.server_message
        if violation := POD_SECURITY.search(message):
            whys = violations.setdefault(violation["standard"], [])
            whys += [violation["why"]] if violation["why"] not in whys else []
        elif quota := QUOTA.search(message):
            if quota["name"] not in said_quotas:
                subject = f"ResourceQuota {needs.namespace}/{quota['name']}"
                yield Finding("quota", subject, message, "raise it, or write kubernetes.resources if it asks for them")
        elif not (has_no_class and CLASS.search(message)):
            yield _refused_pod_finding(each, each.error, needs)
    for standard, whys in violations.items():
        reason = f"it enforces the standard {standard}, which the plan's pods violate: {'; '.join(whys)}"
        fix = f"kubectl label --overwrite namespace {needs.namespace} {PRIVILEGED}; or choose another namespace"
        yield Finding("pod-security", f"Namespace {needs.namespace}", reason, fix)


def _workload_is_refused(component: str, needs: Needs, facts: ClusterFacts) -> bool:
    """Return whether the workload of a refused pod was refused too.

    If it was, the workload's finding reports the same problem.
    """
    workloads = {str(Reference.from_manifest(each)) for each in needs.find_workloads(component)}
    invalid = (each.object for each in facts.refusals if isinstance(each.error, RefusedError) and each.error.is_invalid)
    return not workloads.isdisjoint(invalid)


def _refused_pod_finding(refused: Refusal, error: RefusedError, needs: Needs) -> Finding:
    reason, fix = split_sentence(error.sentence)
    if error.is_about_the_manifest:
        fix = needs.suggest_correction(refused.object, error.server_message) or fix
    if error.is_about_rights:
        return Finding("rights", f"pods of {refused.object}", f"not tried: {reason}", fix, blocks=False)
    if error.silent_webhook:
        return Finding("webhook", error.silent_webhook, reason, fix)
    return Finding("pod", f"pods of {refused.object}", reason, fix)


def _waits_for_pods(claim: Manifest, facts: ClusterFacts) -> bool:
    """Return whether the claim's volume is created only once a pod uses it (WaitForFirstConsumer)."""
    name = claim["spec"].get("storageClassName")
    found = (each for each in facts.storage_classes or () if each["metadata"]["name"] == name)
    return any(each.get("volumeBindingMode") == "WaitForFirstConsumer" for each in found)


def _nodes_mounting(claim: str, needs: Needs) -> set[str]:
    """Return the names of the nodes whose pods mount the claim. A workload without planned nodes counts as one node."""
    mounting = [each for each in needs.pod_sets if claim in each.claims]
    return {node for each in mounting for node in each.nodes or (f"any for {each.owner}",)}


def _planned_usage(needs: Needs) -> dict[str, Decimal]:
    """Return resource -> amount over all the plan's pods, under the names that quotas use.

    Source: https://kubernetes.io/docs/concepts/policy/resource-quotas/ (types of resource quota)
    """
    requests = sum_amounts(_multiply(each.requests, each.num_pods) for each in needs.pod_sets)
    limits = sum_amounts(_multiply(each.limits, each.num_pods) for each in needs.pod_sets)
    return _quota_usage(requests, limits, sum(each.num_pods for each in needs.pod_sets))


def _current_usage(needs: Needs, facts: ClusterFacts) -> dict[str, Decimal]:
    """Return resource -> amount over the plan's pods that exist already, under the names that quotas use."""
    own = [each["spec"] for each in facts.pods or () if needs.owns(each)]
    requests, limits = sum_amounts(map(pod_requests, own)), sum_amounts(map(pod_limits, own))
    return _quota_usage(requests, limits, len(own))


def _quota_usage(requests: Amounts, limits: Amounts, num_pods: int) -> dict[str, Decimal]:
    plain = {name: amount for name, amount in requests.items() if name in ("cpu", "memory")}
    return {
        **plain,
        **{f"requests.{name}": amount for name, amount in requests.items()},
        **{f"limits.{name}": amount for name, amount in limits.items()},
        "pods": Decimal(num_pods),
        "count/pods": Decimal(num_pods),
    }


def _multiply(each: Amounts, number: int) -> Amounts:
    return {name: amount * number for name, amount in each.items()}

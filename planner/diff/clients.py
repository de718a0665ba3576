"""Find what callers of the service have to change together with a plan.

Pods may restart in turns and keep the demand served, and still a caller that asks the old port, for the old model or
without a key gets an error. No verdict says that, since verdicts count units.
"""

from collections.abc import Iterator

from planner.diff.change import SpecField
from planner.plan.plan import Plan

__all__ = ["LONGEST_REQUEST", "find_client_fields"]

LONGEST_REQUEST = "max_request_tokens"


def find_client_fields(before: Plan, after: Plan) -> Iterator[SpecField]:
    """Yield the fields of the spec that callers notice and that differ. The name of a Secret is not shown."""
    old, new = map(_list_visible_fields, (before, after))
    yield from (SpecField(path=path, values=(old[path], new[path])) for path in old if old[path] != new[path])
    longest = [min(plan.spec.phase(phase).max_request_tokens for phase in plan.phases) for plan in (before, after)]
    if longest[1] < longest[0]:  # longer requests are refused
        yield SpecField(path=LONGEST_REQUEST, values=(f"{longest[0]:,}", f"{longest[1]:,}"))
    if before.spec.gateway.keys != after.spec.gateway.keys:
        yield SpecField(path="gateway.keys", values=None)


def _list_visible_fields(plan: Plan) -> dict[str, str]:
    return {
        "name": plan.name,
        "kubernetes.namespace": plan.kubernetes.namespace,
        "model.name": plan.spec.served_model_name,
        "gateway.port": str(plan.spec.gateway.port),
    }

"""Find what callers of the service have to change together with a plan.

Pods may restart in turns and keep the demand served, and still a caller that asks the old port, for the old model or
without a key gets an error. No verdict says that, since verdicts count units.
"""

from collections.abc import Iterator

from planner.diff.change import SpecField
from planner.plan.plan import Plan

__all__ = ["find_client_fields"]


def find_client_fields(before: Plan, after: Plan) -> Iterator[SpecField]:
    """Yield the fields of the spec that callers notice and that differ. The name of a Secret is not shown."""
    old, new = before.spec, after.spec
    if old.served_model_name != new.served_model_name:
        yield SpecField(path="model.name", values=(old.served_model_name, new.served_model_name))
    if old.gateway.port != new.gateway.port:
        yield SpecField(path="gateway.port", values=(str(old.gateway.port), str(new.gateway.port)))
    if old.gateway.keys != new.gateway.keys:
        yield SpecField(path="gateway.keys", values=None)

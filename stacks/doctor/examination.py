"""`tidemill doctor SPEC|PLAN.json --context NAME`: what a plan needs, one look at the cluster, and the findings."""

from planner.plan.deployable import Deployable
from stacks.doctor.checks import findings
from stacks.doctor.findings import Finding
from stacks.doctor.needs import needs_of
from stacks.doctor.reading import read_facts
from stacks.kube.api import connect
from stacks.kube.errors import ProviderError
from stacks.live.status import ClusterError

__all__ = ["examine"]


def examine(plan: Deployable, context: str) -> tuple[Finding, ...]:
    """Compare the cluster of that kubeconfig context with `plan`; nothing is created.

    Raises InfeasibleError for a plan that cannot be rendered, ClusterError where the cluster cannot be asked.
    """
    needs = needs_of(plan)
    try:
        facts = read_facts(connect(context), needs)
    except ProviderError as error:
        raise ClusterError(error) from None
    return findings(needs, facts)

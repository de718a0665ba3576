"""`tidemill doctor SPEC|PLAN.json --context NAME`: reads the plan's needs and the cluster, and finds the obstacles.

With a probe, pods are also started on the planned nodes, and deleted again: `probing.py`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from planner.plan.plan import Plan
from stacks.doctor.checks import findings
from stacks.doctor.findings import Finding
from stacks.doctor.needs import read_needs
from stacks.doctor.probe_checks import probe_findings, probe_summary
from stacks.doctor.probing import STARTED_TIMEOUT_S, probe
from stacks.doctor.reading import read_facts
from stacks.kube.api import connect
from stacks.kube.errors import ProviderError
from stacks.kube.waiting import Patience
from stacks.live.status import ClusterError

__all__ = ["Examination", "examine"]

NOT_PROBED = "nodes were not probed: first fix the findings that block"


@dataclass(frozen=True)
class Examination:
    """The findings about a cluster, and in `probed` a line on the probe: what it measured, or why it did not run.

    `probed` is None if no probe was asked for.
    """

    findings: tuple[Finding, ...]
    probed: str | None

    @property
    def blocks(self) -> bool:
        """Whether any finding would stop `up`."""
        return any(each.blocks for each in self.findings)


def examine(plan: Plan, context: str, *, runs_probe: bool, report: Callable[[str], None]) -> Examination:
    """Compare the cluster of a kubeconfig context with `plan`. Without a probe nothing is created.

    Raises InfeasibleError if the plan cannot be rendered, and ClusterError if the kubeconfig is unusable, or if the
    server does not answer or refuses.
    """
    needs = read_needs(plan)
    try:
        api = connect(context)
        facts = read_facts(api, needs)
        looked = Examination(findings(needs, facts), NOT_PROBED if runs_probe else None)
        if not runs_probe or looked.blocks:
            return looked
        probed = probe(api, needs, facts, Patience(STARTED_TIMEOUT_S, threading.Event(), report))
    except ProviderError as error:
        raise ClusterError(error) from None
    return Examination((*looked.findings, *probe_findings(probed, needs.disk)), probe_summary(probed))

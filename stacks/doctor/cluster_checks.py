"""Checks the user's rights, the kinds that the cluster serves, and the server's verdict on the plan's objects. Pure."""

from collections.abc import Iterator

from planner.facts.names import DEPLOYMENT_KIND
from stacks.doctor.definition import DEFINITION, find_missing_fields
from stacks.doctor.facts import ClusterFacts, Refusal
from stacks.doctor.findings import Finding, plural, split_sentence
from stacks.doctor.needs import Needs
from stacks.kube.errors import INSTALL, ForeignError, OtherPlanError, RefusedError

__all__ = ["definition", "kinds", "objects", "read_failures", "rights"]

MAX_FIELDS = 4  # the most fields to name in a sentence
UNDECLARED = "field not declared in schema"  # in the API server's message about an applied field that it does not know


def read_failures(_: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a note for each part of the cluster that the user has no right to read.

    A note does not block: what was not read may be fine, and `up` does not read it.
    """
    for each in facts.read_failures:
        reason, fix = split_sentence(each.why)
        yield Finding("rights", each.what, f"could not be read: {reason}", fix, blocks=False)


def rights(needs: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a finding for each kind of the plan of which the provider may not get, create, patch and delete objects."""
    for each in facts.missing_rights:
        where = f"in namespace {each.namespace}" if each.namespace else "in the whole cluster"
        reason = f"the kubeconfig's user may not {' or '.join(each.verbs)} them {where}"
        role = "Role" if each.namespace else "ClusterRole"
        fix = f"bind it to a {role} that allows get, create, patch and delete on them"
        if each.kind == "Namespace":
            fix = f"have {needs.namespace} created for you and set kubernetes.create_namespace: false, or {fix}"
        yield Finding("rights", plural(each.kind), reason, fix)


def kinds(_: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a finding for each kind of the plan that the cluster does not serve in the plan's version."""
    for (api_version, kind), versions in facts.unserved_kinds.items():
        group, wanted = api_version.rpartition("/")[0], api_version.rpartition("/")[2]
        install = INSTALL.get(kind, "install what defines it")
        if versions:
            reason = f"the cluster serves {group} in {', '.join(versions)}, but not {kind} in {wanted}"
            fix = f"upgrade what defines it: {install}"
        else:
            reason, fix = f"the cluster does not serve {api_version}", install
        yield Finding("kind", kind, reason, fix)


def definition(_: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a finding if the cluster's CRD of TidemillDeployment lacks fields that this version of Tidemill writes.

    If it lacks a field that the plan's object has, `up` fails. If it lacks another field, the server drops what the
    controller writes to that field.
    """
    fields = _missing_definition_fields(facts)
    if fields:
        more = f" and {len(fields) - MAX_FIELDS} more" if len(fields) > MAX_FIELDS else ""
        reason = f"it is older than this version: it lacks {', '.join(fields[:MAX_FIELDS])}{more}, which are not stored"
        blocks = any(_is_undeclared(each) for each in facts.refusals)
        yield Finding("kind", str(DEFINITION), reason, f"upgrade it: {INSTALL[DEPLOYMENT_KIND]}", blocks=blocks)


def objects(needs: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a finding for each object of the plan that the server refuses, or whose name another owner's object has."""
    for each in facts.refusals:
        if _is_undeclared(each) and _missing_definition_fields(facts):
            continue  # `definition` reports it
        if isinstance(each.error, (ForeignError, OtherPlanError)):
            reason, fix = split_sentence(str(each.error).removeprefix(f"{each.object} "))
            yield Finding("owner", each.object, f"it {reason}", fix)
        elif isinstance(each.error, RefusedError):
            yield from _refused_object(each, each.error, needs, facts)


def _refused_object(refused: Refusal, error: RefusedError, needs: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    reason, fix = split_sentence(error.sentence)
    if error.is_about_the_manifest:
        fix = needs.suggest_correction(refused.object, error.server_message) or fix
    if error.silent_webhook:
        yield Finding("webhook", error.silent_webhook, reason, fix)
    elif not (error.is_about_rights and facts.missing_rights):  # `rights` reports it, for all objects of the kind
        yield Finding("object", refused.object, reason, fix)


def _missing_definition_fields(facts: ClusterFacts) -> list[str]:
    return [] if facts.definition is None else find_missing_fields(facts.definition)


def _is_undeclared(refused: Refusal) -> bool:
    """Return whether a TidemillDeployment was refused because its CRD in the cluster lacks a field."""
    is_ours = refused.object.startswith(f"{DEPLOYMENT_KIND} ")
    return is_ours and isinstance(refused.error, RefusedError) and UNDECLARED in refused.error.server_message

"""Turn a spec file into a spec that can be planned, or into a list of all its mistakes.

    text -> yaml.py (data, places) -> fields.py (single fields) -> named.py (files, catalog) -> rules -> ResolvedSpec

This happens before the first pass, so passes never see a wrong spec and the user sees all mistakes at once. Whether
the cluster is large enough is decided later (`feasible.py`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.facts.reuse import CONVERSATION
from planner.problems.errors import SpecError
from planner.problems.finding import Finding
from planner.problems.fix import Change, Fix, apply_change
from planner.rules.table import broken_rules
from planner.rules.valid_values import ValidValues
from planner.spec.declared import table_key
from planner.spec.fields import check_fields
from planner.spec.named import NamedInputs
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec
from planner.spec.short_forms import expand_short_forms
from planner.spec.undecided import AUTO
from planner.spec.yaml import Document, read_document

MAX_TRIED = 2**15  # assumed: total values to check while trying changes, or about 300 tries for a spec of 100 values


def check_spec(path: Path) -> ResolvedSpec:
    """Return the spec in the file at `path`. Raises SpecError with every mistake in it."""
    return check_document(read_document(path))


def check_document(document: Document) -> ResolvedSpec:
    """Return the spec in `document`, with the contents of the files that it names.

    Raises SpecError with every mistake in it. Each change that the error offers has been tried: it removes its
    mistake and adds no other.
    """
    try:
        return resolve(document)
    except SpecError as error:
        raise SpecError(list(_drop_failed_changes(error.findings, document))) from None


def resolve(document: Document) -> ResolvedSpec:
    """Return the spec in `document`. Raises SpecError with every mistake; the changes that it offers were not tried."""
    fields = check_fields(document.data, document.unread)
    named = NamedInputs(Path(document.file).parent, fields.values)
    values = fields.values | named.resolved
    valid_values = ValidValues(document.data, values, fields.renamed, document.autos)
    findings = [*fields.findings, *named.findings, *broken_rules(valid_values)]
    refused = [finding for _, finding in document.refused]
    if findings or refused:
        raise SpecError([*refused, *map(document.locate, findings)])
    return ResolvedSpec(
        written=Spec.model_validate(document.data),
        model=named.resolved["model.shapes"],
        config_digest=named.resolved.get("model.digest") or values.get("model.config_digest"),
        weights_digest=named.resolved.get("model.digest_of_weights") or values.get("model.weights_digest"),
        other_quantization=named.resolved.get("model.other_quantization"),
        gpu=named.resolved["cluster.device"],
        measured_loads=named.resolved.get("expert_load.loads"),
        reuse=named.resolved.get("traffic.reuse", CONVERSATION),
        inputs=named.inputs,
        document=document,
    )


def mistakes_in(data: Mapping[str, Any]) -> list[Finding]:
    """Return the mistakes in a spec's data that can be found without reading the files that it names."""
    fields = check_fields(data)
    return [*fields.findings, *broken_rules(ValidValues(data, fields.values, fields.renamed))]


def change_spec(spec: ResolvedSpec, values: Change) -> ResolvedSpec:
    """Return `spec` with `values` (dotted path -> value) written into it. Raises SpecError if that breaks a rule."""
    return resolve(change_document(spec.document, values))


def change_document(document: Document, values: Change) -> Document:
    """Return a copy of `document` with `values` (dotted path -> value) written into it.

    Raises LookupError for a path at which no value can be written.
    """
    data = apply_change(expand_short_forms(document.data, values), values)
    return replace(document, data=data, autos=document.autos | set(_auto_paths(values)))


def _auto_paths(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the dotted paths in `values` whose value is `auto`. `above` precedes each path."""
    for key, value in values.items():
        if value == AUTO:
            yield f"{above}{key}"
        elif isinstance(value, dict):
            yield from _auto_paths(value, f"{above}{key}.")


def _drop_failed_changes(findings: Sequence[Finding], document: Document) -> Iterator[Finding]:
    """Yield `findings`, each with only those offered changes that remove its mistake and add no other.

    Each change is tried by checking the whole changed spec, so the number of tries is limited. In a large file with
    many mistakes, the last fixes have words but no changes.
    """
    tries, before = MAX_TRIED // len(document.values), _count_mistakes(findings)
    for finding in findings:
        rest = before - _count_mistakes([finding])
        sound = [each for each in finding.changes[:tries] if _count_mistakes_with(each, document) <= rest]
        tries -= min(tries, len(finding.changes))
        yield replace(finding, fix=Fix(str(finding.fix), tuple(sound)))


def _count_mistakes_with(change: Change, document: Document) -> Counter[tuple[str, str]]:
    try:
        resolve(change_document(document, change))
    except SpecError as error:
        return _count_mistakes(error.findings)
    return Counter()


def _count_mistakes(findings: Sequence[Finding]) -> Counter[tuple[str, str]]:
    """Return the number of mistakes of each (place, rule id).

    Places have no list index, since a change may move a list's items.
    """
    return Counter((table_key(each.path), each.id) for each in findings)

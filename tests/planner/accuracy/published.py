"""Cases of published rows for tests of the speed model: without an expert map, so that they cost nothing."""

from dataclasses import replace

from planner.accuracy.predicted import POINT, Predicted
from planner.accuracy.rows import published_rows
from planner.estimate.case import build_case, unit_shape
from planner.estimate.points import operating_point
from planner.estimate.throughput.copies import expected_copies
from planner.estimate.throughput.engines import engine_model
from planner.estimate.throughput.stages import Imbalance
from planner.layout.layout import lay_out
from planner.rules.check import change_spec

PREFILL, DECODE = "DeepSeek's profile, prefill EP32", "DeepSeek's profile, decode EP128"
SERVICE_PREFILL, SERVICE_DECODE = "DeepSeek's service, prefill EP32", "DeepSeek's service, decode EP144"
SGLANG_PREFILL, SGLANG_DECODE = "SGLang, prefill EP32, 2,048 tokens", "SGLang, decode EP72"


def row_named(name):
    """The published row of this name."""
    return next(row for row in published_rows() if row.name == name)


def case_of(name, imbalance=None):
    """The case of a row on its engine, with the imbalance that a test chooses."""
    row = row_named(name)
    each = Predicted(row)
    spec = change_spec(each.candidate.resolved, {POINT: row.spec[POINT]})
    layout = lay_out(spec, row.phase)
    unit = unit_shape(spec, layout)
    engine = engine_model(each.engine)
    case = build_case(
        spec,
        layout,
        operating_point(spec, row.phase, None),
        expected_copies(spec.model, unit.num_gpus, unit.num_nodes, groups_on_nodes=True),
        replace(engine, imbalance={}) if row.even_routing else engine,
    )
    return replace(case, imbalance=imbalance or Imbalance())

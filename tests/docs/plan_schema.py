"""`docs/plan.schema.json` and `docs/diff.schema.json`: the JSON Schemas of plans and changes, from their types."""

from pydantic.json_schema import GenerateJsonSchema

from planner.diff.change import Change
from planner.facts.digest import pretty_json
from planner.plan.plan import Plan

__all__ = ["diff_schema", "plan_schema", "schema_of_changes", "schema_of_plans"]


def schema_of_plans():
    """Return the schema of what is written."""
    return {"$schema": GenerateJsonSchema.schema_dialect, **Plan.model_json_schema(mode="serialization")}


def schema_of_changes():
    """Return the schema of what `tidemill diff` writes."""
    return {"$schema": GenerateJsonSchema.schema_dialect, **Change.model_json_schema(mode="serialization")}


def plan_schema():
    """Return the file."""
    return pretty_json(schema_of_plans())


def diff_schema():
    """Return the file."""
    return pretty_json(schema_of_changes())

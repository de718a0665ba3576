"""`docs/plan.schema.json`: the JSON Schema of PLAN.json, from the plan's own type."""

from pydantic.json_schema import GenerateJsonSchema

from planner.facts.digest import pretty_json
from planner.plan.plan import Plan

__all__ = ["plan_schema", "schema_of_plans"]


def schema_of_plans():
    """Return the schema of what is written."""
    return {"$schema": GenerateJsonSchema.schema_dialect, **Plan.model_json_schema(mode="serialization")}


def plan_schema():
    """Return the file."""
    return pretty_json(schema_of_plans())

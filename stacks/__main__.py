"""The Pulumi program: one spec's plan on one cluster. `pulumi up` in this folder; README.md says how."""

from pathlib import Path

import pulumi

from planner.compiler import compile_plan
from planner.problems.errors import TidemillError
from planner.spec.check import check_spec
from stacks.program.deployment import deploy

config = pulumi.Config()
try:
    plan = compile_plan(check_spec(Path(config.require("spec"))))
    deployment = deploy(plan, context=config.get("context"))
except TidemillError as error:
    raise pulumi.RunError(str(error)) from None

pulumi.export("endpoint", deployment.endpoint)
pulumi.export("plan_digest", plan.digest)

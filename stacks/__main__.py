"""The Pulumi program: one plan on one cluster. `pulumi up` in this folder; README.md says how."""

import pulumi

from planner.problems.errors import TidemillError
from stacks.program.config import configured_plan
from stacks.program.deployment import deploy

config = pulumi.Config()
try:
    plan = configured_plan(*map(config.get, ("spec", "plan", "previous", "overlays")))
    deployment = deploy(plan, context=config.get("context"))
except TidemillError as error:
    raise pulumi.RunError(str(error)) from None

pulumi.export("endpoint", deployment.endpoint)
pulumi.export("plan_digest", plan.digest)

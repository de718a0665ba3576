"""The Pulumi program: one plan on one cluster. `pulumi up` in this folder; Pulumi.yaml declares its settings."""

import pulumi
from pulumi.runtime.config import is_config_secret

from planner.problems.errors import TidemillError
from stacks.program.deployment import Deployment
from stacks.program.source import FIELDS, Source

config = pulumi.Config()
settings = {each: config.get(each) for each in FIELDS} | {"overlays": config.get_object("overlays")}
adopt = config.get_bool("adopt") or None
kubeconfig = config.get_secret("kubeconfig") if config.get("kubeconfig") else None
try:
    source = Source.parse(settings, is_secret=any(is_config_secret(config.full_key(each)) for each in FIELDS))
    deployment = Deployment(source.deployed.name, source, kubeconfig, config.get("context") or None, adopt)
except TidemillError as error:
    raise pulumi.RunError(str(error)) from None

for name, value in deployment.outputs.items():
    pulumi.export(name, value)

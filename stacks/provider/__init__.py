"""Our Pulumi provider: Pulumi's protocol on one side, `stacks.kube` on the other."""

"""The provider as a Pulumi program sees it: `Provider` once, an `Object` for a manifest, `Objects` for several.

    provider = Provider("cluster", kinds=["v1/Namespace", "apps/v1/Deployment"])
    Object("gateway", manifest, ResourceOptions(provider=provider))
    Objects("decode-0", {"Service": manifest, "LeaderWorkerSet": manifest}, ResourceOptions(provider=provider))
    Occupants("units", {"decode-0": manifest}, ResourceOptions(provider=provider))

An object's properties are the manifest's own top-level keys, so previews name `spec.replicas` and not
`manifest.spec.replicas`. It does not import `kubernetes`: a program needs only Pulumi.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi

from stacks.kube.manifest import OBJECTS, type_token
from stacks.provider import occupants

__all__ = ["Arrivals", "Object", "Objects", "Occupants", "Provider"]


class Provider(pulumi.ProviderResource):
    """The provider for one cluster.

    Before anything is changed there, it checks that the cluster answers and serves all `kinds`.
    """

    def __init__(
        self,
        name: str,
        context: pulumi.Input[str] | None = None,
        kinds: Sequence[str] = (),
        kubeconfig: pulumi.Input[str] | None = None,
        adopt: pulumi.Input[bool] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Choose the cluster by a `kubeconfig` (a path or the content) and a `context`; None is the current one.

        With `adopt`, objects of the plan that kubectl or Git has applied are taken over instead of refused.
        """
        values = {"context": context, "kinds": list(kinds), "kubeconfig": kubeconfig, "adopt": adopt}
        super().__init__("tidemill", name, values, opts)


class Object(pulumi.CustomResource):
    """One Kubernetes object. `apiVersion`, `kind` and `immutable` are plain values; anything else may be an output.

    If the object has to be replaced, the old one is deleted first, since names are unique. An immutable object is
    replaced under another name, so the new one is created first, and pods can use either at any time.

    Pulumi waits until the object is ready, 10 minutes at most:
    `ResourceOptions(custom_timeouts=CustomTimeouts(create="20m"))` changes that.
    """

    def __init__(self, name: str, manifest: Mapping[str, Any], opts: pulumi.ResourceOptions | None = None) -> None:
        old_first = pulumi.ResourceOptions(delete_before_replace=not manifest.get("immutable"))
        options = pulumi.ResourceOptions.merge(old_first, opts)
        super().__init__(type_token(manifest["apiVersion"], manifest["kind"]), name, dict(manifest), options)


class Objects(pulumi.CustomResource):
    """Several objects as one resource. Each object has a key that stays when the object changes.

    Objects are stored in order, workloads last, and deleted in reverse.

    A changed object is updated or replaced by itself. If the last object gets another identity, all are replaced, old
    ones first. Pulumi waits for them as for an `Object`.
    """

    def __init__(
        self, name: str, manifests: Mapping[str, Mapping[str, Any]], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        options = pulumi.ResourceOptions.merge(pulumi.ResourceOptions(delete_before_replace=True), opts)
        super().__init__(OBJECTS, name, dict(manifests), options)


class Occupants(pulumi.CustomResource):
    """The list of the objects that occupy nodes, by name.

    Only the identity and the labels of each manifest count. Objects new to the list are created without waiting, so an
    `Arrivals` has to follow. If the plan has a controller, the controller deletes objects that leave the list.
    """

    def __init__(
        self,
        name: str,
        objects: Mapping[str, Mapping[str, Any]],
        opts: pulumi.ResourceOptions | None = None,
        *,
        has_controller: bool = False,
    ) -> None:
        controller = {"controller": True} if has_controller else {}
        super().__init__(occupants.TOKEN, name, {"objects": dict(objects), **controller}, opts)


class Arrivals(pulumi.CustomResource):
    """A resource that waits for all objects of `Occupants` that were stored without waiting. It must depend on them."""

    def __init__(self, name: str, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(occupants.ARRIVALS, name, {}, opts)

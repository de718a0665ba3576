"""A deployment under control: its units are scaled, and events report it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stacks.controller.act import scale, write_event
from stacks.controller.decide import Scale
from stacks.controller.lease import Lease
from stacks.controller.live_maps import FollowedMaps
from stacks.kube.api import Api
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest, find_condition

__all__ = ["Follower", "apply_scale", "find_new_messages", "report_event"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Follower:
    """The deployment that a controller follows, and how the controller reaches it."""

    api: Api
    namespace: str
    name: str
    lease: Lease | None  # None in a dry run, which must not take the lease from another controller
    say: Say
    clock: Callable[[], float] = time.time  # real time by the API server's clock; may raise ProviderError
    maps: FollowedMaps = field(default_factory=FollowedMaps)

    @property
    def is_dry_run(self) -> bool:
        """True if nothing may be written."""
        return self.lease is None


def apply_scale(follower: Follower, deployment: Manifest, scales: Scale, now: float) -> None:
    """Scale one unit and report it; a dry run only reports it. A failure is reported and does not stop the round."""
    word = "start" if scales.is_on else "drain"
    if follower.is_dry_run:
        follower.say(f"would {word} {scales.unit}: {scales.reason}")
        return
    try:
        scale(follower.api, follower.namespace, scales)
    except ProviderError as error:
        follower.say(f"cannot {word} {scales.unit}: {error}")
        return
    follower.say(f"{word} {scales.unit}: {scales.reason}")
    report_event(follower, deployment, word.capitalize(), f"{scales.unit}: {scales.reason}", now)


def find_new_messages(deployment: Manifest, condition: str, messages: Sequence[str]) -> list[str]:
    """Return those of `messages` that are not in the `condition` that the last round has written."""
    told = find_condition(deployment, condition).get("message", "").split("; ")
    return [each for each in messages if each not in told]


def report_event(
    follower: Follower, deployment: Manifest, reason: str, message: str, now: float, *, is_warning: bool = False
) -> None:
    """Write an event, except in a dry run. If that is not permitted, report it and go on."""
    if follower.is_dry_run:
        return
    try:
        write_event(follower.api, deployment, reason, message, now, is_warning=is_warning)
    except ProviderError as error:
        follower.say(f"cannot write an event: {error}")

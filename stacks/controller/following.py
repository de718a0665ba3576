"""A deployment that is followed: its units are turned on and off, and a person is told of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from stacks.controller.act import scale, tell
from stacks.controller.decide import Scale
from stacks.controller.lease import Lease
from stacks.kube.api import Api
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest

__all__ = ["Following", "change", "note"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Following:
    """A deployment that is followed, and the one who follows it."""

    api: Api
    namespace: str
    name: str
    lease: Lease | None  # none in a dry run, which takes nothing from anybody
    say: Say
    clock: Callable[[], float] = time.time  # the world's time as the API server has it; may raise ProviderError

    @property
    def is_dry_run(self) -> bool:
        """True if nothing is written."""
        return self.lease is None


def change(following: Following, deployment: Manifest, scales: Scale, now: float) -> None:
    """Scale one unit, and say so. A unit that cannot be scaled keeps none of the others."""
    word = "start" if scales.is_on else "drain"
    if following.is_dry_run:
        following.say(f"would {word} {scales.unit}: {scales.why}")
        return
    try:
        scale(following.api, following.namespace, scales)
    except ProviderError as error:
        following.say(f"cannot {word} {scales.unit}: {error}")
        return
    following.say(f"{word} {scales.unit}: {scales.why}")
    note(following, deployment, word.capitalize(), f"{scales.unit}: {scales.why}", now)


def note(
    following: Following, deployment: Manifest, reason: str, message: str, now: float, *, is_warning: bool = False
) -> None:
    """Write an event, but in a dry run. Where none may be written, that is said, and everything else goes on."""
    if following.is_dry_run:
        return
    try:
        tell(following.api, deployment, reason, message, now, is_warning=is_warning)
    except ProviderError as error:
        following.say(f"cannot write an event: {error}")

"""The record of one deployment on this machine: its gateways and units as their supervisor last saw them.

`run_folder.py` keeps it in a file. Records are immutable: a change makes a new one.
"""

from dataclasses import dataclass, field, replace

from stacks.local.played_day import DayRecord

__all__ = ["ORDER", "GatewayRecord", "Record", "UnitRecord"]

ORDER = ("starting", "loading", "joining", "ready")  # the states of a unit that comes up, in order


@dataclass(frozen=True)
class UnitRecord:
    """The state of one unit when the supervisor looked last. A unit is off while the played day does not want it.

    `loaded` is the fraction of its tensors that the unit's slowest rank has loaded. `reason` says why the unit ended or
    failed, also while it restarts. `starts_at` is the time.monotonic() of the unit's next start. `metrics` are the
    addresses of its ranks' metrics, in the order of ranks.

    `planned_map` is the digest of the plan's map. The unit went to the epoch with digest `own_digest` by itself, for
    the reason `own_reason`. `decision` is the latest decision on whether the unit gets a better map, and `unread` why
    its loads or its map cannot be read now.

    Only its ranks know the unit's map (`in_service.py`): the digest `map_in_service`, empty if they do not say it. In
    epoch 0 that is the plan's map; `epoch_digest` is the digest of a later epoch. `forgets` says why the unit starts
    again in another epoch.
    """

    name: str
    phase: str
    state: str  # starting | loading | joining | ready | draining | ended | failed | off | unknown
    ranks: int
    reason: str | None = None
    loaded: float = 0.0
    restarts: int = 0
    starts_at: float | None = None
    metrics: tuple[str, ...] = ()
    epoch: int = 0
    epoch_digest: str | None = None
    planned_map: str = ""
    map_in_service: str = ""
    own_digest: str | None = None
    own_reason: str = ""
    decision: str | None = None
    unread: str | None = None
    forgets: str | None = None


@dataclass(frozen=True)
class GatewayRecord:
    """The state of one gateway. A gateway is `starting` until it has ranks of every phase.

    `reason` says why the gateway is down. `endpoint` is its HTTP address, without `/v1`. `starts_at` is the
    time.monotonic() of its next start. `metrics` has the address of its metrics.
    """

    name: str
    endpoint: str
    state: str = "starting"  # starting | ready | failed | ended | unknown
    reason: str | None = None
    restarts: int = 0
    starts_at: float | None = None
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """The record of one deployment. `stages` is stage -> seconds from the supervisor's start until it was reached."""

    name: str
    plan_digest: str
    gateways: tuple[GatewayRecord, ...]
    model: str
    units: tuple[UnitRecord, ...]
    supervisor: int = 0  # the supervisor's process; 0 before there is one
    supervisor_began: int = 0  # when that process began, as `start_ticks` returns it
    stages: dict[str, float] = field(default_factory=dict)
    looked_at: float | None = field(default=None, compare=False)  # the supervisor's last look
    trouble: str | None = None  # a failure of the supervisor itself that it retries
    failure: str | None = None  # why the whole deployment ended, once it has
    stopped_by: str | None = None  # the signal by which somebody ended it
    is_stopping: bool = False  # nothing new is started; running answers have `drain_s` to end
    drain_s: float = 0.0  # seconds that running answers get, once it is stopping
    switches_units: bool = False  # whether the plan's schedule switches units, though no day is played
    day: DayRecord | None = None  # the day that is played
    keys: str | None = None  # the gateways' file of API keys; None: they ask for no key
    started_in: str = ""  # the folder in which `up` was called
    slo_ms: tuple[float | None, float | None] = (None, None)  # the mean TTFT and TPOT that the plan promises
    weights_before: str | None = None  # digest of the weights that this plan last served here, if known

    @property
    def endpoint(self) -> str:
        """The first gateway's address, without `/v1`."""
        return self.gateways[0].endpoint

    @property
    def host(self) -> str:
        """The first gateway's host alone, as in `--host`."""
        return self.endpoint.removeprefix("http://").partition(":")[0]

    @property
    def parts(self) -> tuple[GatewayRecord | UnitRecord, ...]:
        """All gateways and units. The supervisor restarts any of them that ends."""
        return (*self.gateways, *self.units)

    @property
    def is_ready(self) -> bool:
        """True if every gateway has ranks of all phases, and every unit that is not off is ready."""
        return all(gateway.state == "ready" for gateway in self.gateways) and all(
            unit.state in ("ready", "off") for unit in self.units
        )

    @property
    def has_failed(self) -> bool:
        """Whether the deployment has failed, or a gateway or unit is down or in an unknown state."""
        return self.failure is not None or any(part.state in ("failed", "unknown") for part in self.parts)

    @property
    def is_closed(self) -> bool:
        """Whether this is the supervisor's final record: it was stopping, and nothing is left running."""
        return self.is_stopping and all(part.state in ("ended", "failed", "off") for part in self.parts)

    def with_gateway(self, gateway: GatewayRecord) -> "Record":
        """Return the record with one gateway replaced."""
        gateways = tuple(gateway if known.name == gateway.name else known for known in self.gateways)
        return replace(self, gateways=gateways)

    def with_unit(self, unit: UnitRecord) -> "Record":
        """Return the record with one unit replaced."""
        units = tuple(unit if known.name == unit.name else known for known in self.units)
        return replace(self, units=units)

    def with_all(self, state: str, reason: str | None = None) -> "Record":
        """Return the record with every gateway and unit set to `state`, except those that are off or have failed."""
        record = self
        for gateway in self.gateways:
            if gateway.state != "failed":
                record = record.with_gateway(replace(gateway, state=state, reason=reason))
        for unit in self.units:
            if unit.state not in ("failed", "off"):
                record = record.with_unit(replace(unit, state=state, reason=reason))
        return record

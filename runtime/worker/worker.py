"""One rank: it loads, joins its unit, reports that it is ready, and steps with its peers until the unit leaves.

    loading -> joining -> ready -> draining

In each turn of the loop a rank receives what has arrived, then the ranks vote on whether any of them has work (one
all-reduce). If one has, all step, each with its own requests or none. Between the vote and the step experts may change
their slots (`expert_parallel/epochs/switch.py`). A lost peer ends the rank, because a unit lives or dies as a whole.
"""

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from runtime.checkpoint import (
    MANIFEST,
    ReadWeights,
    UnchangedFiles,
    agreed_weights,
    check_config_digest,
    check_weights_digest,
    resolve,
)
from runtime.errors import RuntimeFailure
from runtime.expert_parallel.epochs.document import Standing
from runtime.expert_parallel.epochs.switch import Switch
from runtime.expert_parallel.factory import new_group
from runtime.expert_parallel.group import Group
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.kernels.cpu.memory import keep_freed_memory
from runtime.kernels.device import describe, use_device
from runtime.kernels.precision import DTYPES
from runtime.kv.blocks import block_digest, block_identity
from runtime.kv.held_prefix import HeldPrefix
from runtime.kv.host_memory import HostMemory, max_held_bytes, max_host_bytes
from runtime.kv.nixl import NixlAgent
from runtime.kv.receiver import KvReceiver, check_layout
from runtime.kv.sender import KvSender
from runtime.launch import RankPlace, UnitLaunch, canonical_digest
from runtime.model.engine import Engine, EngineConfig
from runtime.protocol.messages import Handover, Hello
from runtime.protocol.metrics_server import serve_metrics
from runtime.protocol.sockets import check_address, listen
from runtime.protocol.tls import Credentials, Trust
from runtime.serving.decode import ArrivedRequest, DecodePhase, Hold, Release
from runtime.serving.mixed import MixedPhase
from runtime.serving.prefill import PrefillPhase
from runtime.serving.step_loop import PhaseRunner
from runtime.worker.control import Control, last_standing, listen_in
from runtime.worker.disk import close_disk, open_disk
from runtime.worker.gateway_connection import GatewayAddress
from runtime.worker.io_thread import Inbox, Network
from runtime.worker.leaving import Leaving
from runtime.worker.next_epoch import LOOK_S, NextEpoch, epoch_page
from runtime.worker.pulse import Pulse
from runtime.worker.rank_metrics import RankMetrics
from runtime.worker.step_deadline import start_step_deadline
from runtime.worker.step_times import StepTimes

__all__ = ["Addresses", "run_rank"]

PHASES: dict[str, type[PhaseRunner[Any]]] = {"prefill": PrefillPhase, "decode": DecodePhase, "mixed": MixedPhase}
LOADING_PARTS = 50  # progress messages while a rank loads, instead of one for each of 10,000 tensors
STEP_TIME_S = 1.0  # assumed: the time is smoothed, and a slow rank must be named within seconds
LOAD_S = 0.1  # as often as vLLM's coordinator sends loads (vllm/v1/engine/coordinator.py)
IDLE_WAIT_S = 0.02  # an idle unit votes this often, so a request waits no longer for the other ranks
LONG_IDLE_WAIT_S = 0.1  # after a longer idle time, because voting costs a CPU and requests are rare
LONG_IDLE_TURNS = 250  # five seconds of idle turns


@dataclass(frozen=True)
class Addresses:
    """This rank's node and address, and the hosts that it calls: the unit's `leader` and the `gateway`.

    `tls` is the folder of the certificate that the rank shows to the gateway. Through the folder `control`, if given, a
    user of this machine hands epochs' documents to the unit's first rank, and all ranks find the epoch that the unit
    was in last. The first rank also reads such documents from the file `next_epoch`, if given.
    """

    node: str
    address: str
    leader: str
    gateway: str
    tls: Path | None = None
    control: Path | None = None
    next_epoch: Path | None = None


def run_rank(launch: UnitLaunch, place: RankPlace, addresses: Addresses) -> None:
    """Serve until SIGTERM ends this rank or another rank of its unit.

    Raises RuntimeFailure if this rank cannot go on.
    """
    device = _take_device(launch, place)  # before there is any tensor
    check_address(addresses.address)
    folder = resolve(launch.checkpoint.uri)
    unchanged = UnchangedFiles((folder / "config.json", folder / MANIFEST))
    check_config_digest(folder, launch.checkpoint.config_digest)
    check_weights_digest(folder, launch.checkpoint.weights_digest)
    metrics, inbox, pulse = RankMetrics(launch, place.rank), Inbox(), Pulse()
    kv_port = launch.ports.kv + place.local_rank if launch.phase == "decode" else None
    hello = _hello(launch, place, addresses, kv_port)
    agent = NixlAgent() if launch.kv_cache.transport == "nixl" and launch.phase != "mixed" else None
    kv_sender = KvSender(metrics, max_held_bytes(launch), agent)
    network = Network(_gateway(launch, addresses), hello, inbox, kv_sender)
    metrics_port, ready = launch.ports.metrics + place.local_rank, threading.Event()

    def serves() -> bool:
        return ready.is_set() and network.refusal is None

    def show_epoch() -> bytes:
        return epoch_page(launch, switch)

    pages = {"/epoch": show_epoch}
    with serve_metrics(metrics.registry, addresses.address, metrics_port, serves, pulse.is_moving, pages):
        network.open_links()
        standing = last_standing(launch, addresses.control)
        config = _engine_config(launch, standing, folder, device)
        engine, group, weights = _load_and_join(launch, place, addresses, config, unchanged, network, pulse)
        require_same_epoch(group, standing)
        metrics.watch(engine.model)
        launch = bind_to_weights(launch, weights)
        blocks = block_digest(block_identity(launch, weights, engine.token_shape[0], engine.backend.kernels))
        memory = HostMemory(max_host_bytes(launch))
        phase = PHASES[launch.phase](engine, launch, network, metrics, blocks, memory)
        disk = open_disk(launch.limits, blocks, phase.cache.host, f"rank {place.rank} of {launch.unit}")
        if disk is not None:
            phase.use(disk)
            metrics.watch_disk(disk.counters)
        network.say_hello_again(hello.add_loaded_digests(launch.kv_digest, phase.tokenizer_digest))
        if kv_port is not None:
            receiver = _receiver(launch, engine, inbox, memory, agent)
            network.open_kv_port(listen(addresses.address, kv_port, "kv"), receiver)
        switch = Switch(launch, group, engine.model.moe_layers(), standing, engine.backend.ops.link)
        metrics.watch_switches(switch)
        phase.prepare()
        group.any(True)  # no rank is ready before all are
        leaving = Leaving(network)
        signal.signal(signal.SIGTERM, lambda *_: leaving.begin())
        network.say_state("ready")
        ready.set()
        pulse.repeat(network.repeat_state)
        pulse.repeat(phase.tell_load, LOAD_S)
        times = StepTimes(engine.model.dispatcher.traffic.waits)
        metrics.watch_steps(times)
        pulse.repeat(partial(times.tell, network.say_step_time), STEP_TIME_S)
        start_step_deadline(pulse, f"rank {place.rank} of {launch.unit}")
        if addresses.control is not None and place.rank == 0:
            control = Control(launch, switch, addresses.control)
            network.open_control(listen_in(addresses.control, launch.unit), control.serve)
        if addresses.next_epoch is not None and place.rank == 0:
            pulse.repeat(NextEpoch(addresses.next_epoch, switch).look, LOOK_S)
        run_step_loop(phase, group, switch, inbox, leaving, pulse, times)
        close_disk(disk)


def _gateway(launch: UnitLaunch, addresses: Addresses) -> GatewayAddress:
    trust = None if addresses.tls is None else Trust(Credentials(addresses.tls, "client"), launch.tls.gateway)
    return GatewayAddress(addresses.gateway, launch.ports.registry, trust)


def _take_device(launch: UnitLaunch, place: RankPlace) -> torch.device:
    """Return this rank's device. On a CPU, make the process keep freed memory; on a GPU, log which one it is."""
    device = use_device(launch.device, place.local_rank)
    if device.type == "cpu":
        keep_freed_memory()
    else:
        untried = "; we have run exchanges on one GPU, but none between GPUs yet" if len(launch.ranks) > 1 else ""
        line = f"tidemill: rank {place.rank} of {launch.unit} uses {describe(device)}{untried}"
        print(line, file=sys.stderr, flush=True)
    return device


def run_step_loop(
    phase: PhaseRunner[Any],
    group: Group,
    switch: Switch,
    inbox: Inbox,
    leaving: Leaving,
    pulse: Pulse,
    times: StepTimes,
) -> None:
    """Run the lockstep loop until the unit leaves and all its ranks are free. Raises PeerLost if a rank is lost."""
    idle_turns = 0  # equal on all ranks, because their votes are
    while True:
        pulse.turn()
        while not inbox.empty():
            _deliver(inbox.get(), phase)
        if leaving.has_begun:
            leaving.tell_gateways()
        has_work, leaves, lags, fails = group.vote(phase.has_work(), leaving.has_begun, *switch.votes())
        switch.turn(lags, fails)
        idle_turns = 0 if has_work or leaves else idle_turns + 1
        if has_work:
            with times.step():
                phase.step()
        elif leaves and _may_leave(group, leaving):
            return
        else:
            phase.rest()
            wait_s = IDLE_WAIT_S if idle_turns < LONG_IDLE_TURNS else LONG_IDLE_WAIT_S
            _wait_for_work(inbox, phase, wait_s)


def _may_leave(group: Group, leaving: Leaving) -> bool:
    """Return whether the unit, which has no work and was told to leave, may end: all of its ranks are free.

    All ranks call this together.
    """
    leaving.tell_gateways()
    return not group.any(not leaving.is_free)


def _hello(launch: UnitLaunch, place: RankPlace, addresses: Addresses, kv_port: int | None) -> Hello:
    planned = launch.places[place.place]
    return Hello(
        unit=launch.unit,
        phase=launch.phase,
        rank=place.rank,
        num_ranks=len(launch.ranks),
        node=addresses.node,
        pid=os.getpid(),
        unit_digest=launch.unit_digest,
        kv_digest=launch.kv_digest,
        kv_host=None if kv_port is None else addresses.address,
        kv_port=kv_port,
        for_node=None if planned == addresses.node else planned,
    )


def _load_and_join(
    launch: UnitLaunch,
    place: RankPlace,
    addresses: Addresses,
    config: EngineConfig,
    unchanged: UnchangedFiles,
    network: Network,
    pulse: Pulse,
) -> tuple[Engine, Group, str]:
    """Load the weights, then join the unit, so that no rank waits in a collective for the slowest loader.

    Return the engine, the group, and the digest of the weights that the unit has read.
    """
    group = new_group(place.rank, len(launch.ranks), launch.rank_nodes(), config.device)
    engine = Engine(config, group, throttle_progress(LOADING_PARTS, network.say_loaded))
    read = engine.loaded.summarise(f"rank {place.rank} on {addresses.node}")
    unchanged.require()
    check_layout(launch.kv_cache, engine.token_shape)
    pulse.note_weights()
    network.say_state("joining")
    first_of_node = place.local_rank == 0
    group.join(MeetingPoint(addresses.leader, launch.ports.rendezvous, first_of_node, addresses.address))
    return engine, group, agree_on_weights(group, read)


def bind_to_weights(launch: UnitLaunch, weights: str) -> UnitLaunch:
    """Return the launch file with the digest of the weights in `kv_digest`, if the plan names no weights.

    KV is thus exchanged only between units that loaded the same weights. The gateway gets the new digest.
    """
    if launch.checkpoint.weights_digest is not None:
        return launch
    return msgspec.structs.replace(launch, kv_digest=canonical_digest([launch.kv_digest, weights]))


def agree_on_weights(group: Group, own: ReadWeights) -> str:
    """Return the digest of the weights that this unit's ranks have read. Raises CheckpointError if they differ."""
    read = group.gather(msgspec.json.encode(own))
    return agreed_weights([msgspec.json.decode(each, type=ReadWeights) for each in read])


def require_same_epoch(group: Group, standing: Standing) -> None:
    """Raises RuntimeFailure if a rank of this unit begins in another epoch than this rank."""
    digests = [each.decode() for each in group.gather(standing.digest.encode())]
    if other := next((digest for digest in digests if digest != standing.digest), None):
        raise RuntimeFailure(
            f"rank {group.rank} begins in epoch {standing.number}, {standing.digest}, rank {digests.index(other)} in"
            f" {other}: an epoch was written while the unit started"
        )


def _engine_config(launch: UnitLaunch, standing: Standing, folder: Path, device: torch.device) -> EngineConfig:
    return EngineConfig(
        checkpoint=folder,
        expert_map=standing.physical_to_logical,
        dtype=DTYPES[launch.precision],
        deterministic=launch.deterministic,
        overlap=launch.overlap,
        nodes=launch.local_first_nodes,
        max_step_tokens=launch.limits.max_requests if launch.phase == "decode" else None,
        device=device,
    )


def throttle_progress(num_parts: int, say: Callable[[float], None]) -> Callable[[int, int], None]:
    """Return a progress function (done, total) that calls `say(done / total)` at most `num_parts` times."""
    num_said = 0

    def progress(done: int, total: int) -> None:
        nonlocal num_said
        if done * num_parts // total > num_said:
            num_said = done * num_parts // total
            say(done / total)

    return progress


class _Holder:
    """Asks the step loop, through its inbox, to hold and release the prefixes of offered prompts."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def hold(self, prefix: HeldPrefix, answer: Callable[[int], object]) -> None:
        self._inbox.put(Hold(prefix, answer))

    def release(self, prefix: HeldPrefix) -> None:
        self._inbox.put(Release(prefix))


def _receiver(
    launch: UnitLaunch, engine: Engine, inbox: Inbox, memory: HostMemory, agent: NixlAgent | None
) -> KvReceiver:
    def accept(handover: Handover, latents: Tensor, prefix: HeldPrefix) -> None:
        inbox.put(ArrivedRequest(handover, latents, prefix))

    link, vocab_size = engine.backend.ops.link, engine.config.vocab_size
    return KvReceiver(launch, engine.token_shape, vocab_size, accept, link, memory, agent, _Holder(inbox))


def _deliver(message: object, phase: PhaseRunner[Any]) -> None:
    """Pass a message from the inbox to the phase.

    If the message is the error that ended the network thread, raise it.
    """
    if isinstance(message, BaseException):
        raise message
    phase.receive(message)


def _wait_for_work(inbox: Inbox, phase: PhaseRunner[Any], at_most_s: float) -> None:
    with suppress(queue.Empty):
        _deliver(inbox.get(timeout=at_most_s), phase)

"""`python -m runtime`: the commands that pods, `tidemill up` and other commands of `tidemill` start.

    node       the ranks of one unit on one node          generate     a checkpoint, offline
    rank       one of them, started by its node           checkpoint   its manifest
    gateway    the HTTP front                             stage        its copy on a node's own disk

Failures that a user can cause are one sentence on stderr and status 1 (2 when the
call was wrong, 75 when only a peer was lost).
"""

import argparse
import gc
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from runtime.checkpoint import MANIFEST
from runtime.errors import PeerLost, RuntimeFailure, UsageError
from runtime.gateway.ranks.router import Policy
from runtime.launch import RankPlace, UnitLaunch, read_gateway_launch, read_unit_launch
from runtime.trace import recording
from runtime.worker.children import PEER_LOST, ChildDied, die_with_parent
from runtime.worker.cpus import usable_cpus

__all__ = ["main"]

DRAIN = "time for answers to be finished after SIGTERM (default: none)"
DRAIN_S = 5.0  # assumed: time for a short answer, if a gateway is started by hand
DRAIN_OF_GATEWAY = f"time for answers to be finished after SIGTERM (default: {DRAIN_S:g})"
MAX_DRAIN_S = 86_400.0
GATEWAYS = "gateways side by side, among which a key's limits and the places to wait are divided (default: 1)"
TLS = "tls.crt, tls.key and ca.crt, which ranks and gateway show each other (default: none)"
CONTROL = "where the unit takes expert maps while it serves, and keeps its last one (default: nowhere)"
NEXT_EPOCH = "a file with the expert map that the unit is to follow next, if there is one (default: none)"
WEIGHTS = "where the gateways of a deployment remember with which weights it serves (default: nowhere)"
TOKENIZER = "where they remember with which files of the tokenizer it serves (default: nowhere)"
BALANCERS = [policy.value for policy in Policy]
TRACE_FOLDER = "TIDEMILL_TRACE"  # an environment variable, since users seldom start ranks themselves; empty: no trace


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError, so that a wrong call is reported in one sentence."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Raises UsageError for unknown words. The error names the options that begin like the first unknown word."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            begun = [each for each in self._option_string_actions if each.startswith(unknown[0].partition("=")[0])]
            meant = f"; did you mean {' or '.join(begun)}?" if begun else ""
            self.error(f"{' '.join(unknown)} is not known{meant}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"was called wrongly; {message}; see {self.prog} --help [S900]")


class _Log(io.TextIOWrapper):
    """Stderr as a log. On a full disk its lines are lost, and the process goes on."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        arguments = _parser().parse_args(argv)
        if arguments.parent is not None:
            die_with_parent(arguments.parent)
        arguments.run(arguments)
    except RuntimeFailure as error:
        print(f"tidemill: {error}", file=sys.stderr)
        is_echo = isinstance(error, PeerLost) or (isinstance(error, ChildDied) and error.is_echo)
        return PEER_LOST if is_echo else 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m runtime", description="Tidemill's runtime.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, summary in (("node", _node, "a unit's ranks on one node"), ("rank", _rank, "one rank")):
        command = _command(commands, name, run, summary)
        command.add_argument("--launch", type=Path, required=True, help="the unit's launch file")
        command.add_argument("--node", required=True, help="this node's name")
        command.add_argument("--address", required=True, help="the IP that this node binds and is reached at")
        command.add_argument("--leader", required=True, help="the address of the unit's first node")
        command.add_argument("--gateway", help="the gateway's host (default: the launch file's gateway.service)")
        command.add_argument("--tls", type=Path, metavar="FOLDER", help=TLS)
        command.add_argument("--control", type=Path, metavar="FOLDER", help=CONTROL)
        command.add_argument("--next-epoch", type=Path, metavar="FILE", help=NEXT_EPOCH)
        if name == "node":
            command.add_argument("--drain", type=_seconds, default=0.0, metavar="SECONDS", help=DRAIN)
        else:
            command.add_argument("--place", type=int, required=True, help="this node's place in the unit")
            command.add_argument("--local-rank", type=int, required=True)
    gateway = _command(commands, "gateway", _gateway, "the HTTP front")
    gateway.add_argument("--launch", type=Path, required=True, help="the gateway's launch file")
    gateway.add_argument("--address", required=True, help="the IP to bind")
    gateway.add_argument("--drain", type=_seconds, default=DRAIN_S, metavar="SECONDS", help=DRAIN_OF_GATEWAY)
    gateway.add_argument("--keys", type=Path, metavar="FILE", help="who may ask, as JSON (default: anybody)")
    gateway.add_argument("--gateways", type=_count, default=1, metavar="N", help=GATEWAYS)
    gateway.add_argument("--tls", type=Path, metavar="FOLDER", help=TLS)
    gateway.add_argument("--weights", type=Path, metavar="FILE", help=WEIGHTS)
    gateway.add_argument("--tokenizer", type=Path, metavar="FILE", help=TOKENIZER)
    gateway.add_argument("--balancer", choices=BALANCERS, default=BALANCERS[0], help="how ranks are chosen")
    stage = _command(commands, "stage", _stage, "copy a checkpoint to this node's own disk")
    stage.add_argument("source", help="the checkpoint's folder, or bundled:NAME")
    stage.add_argument("destination", type=Path, help="the folder that gets the copy")
    _add_generate(commands)
    _add_checkpoint(commands)
    return parser


def _add_checkpoint(commands: "argparse._SubParsersAction[_Parser]") -> None:
    summary = "compute the digests of a checkpoint"
    checkpoint = commands.add_parser("checkpoint", prog="tidemill checkpoint", help=summary, description=summary)
    actions = checkpoint.add_subparsers(required=True, metavar="COMMAND")
    digest = _command(actions, "digest", _digest, "write the manifest that ranks compare while they load")
    digest.add_argument("checkpoint", metavar="PATH", help="a folder, or bundled:NAME")
    digest.add_argument("-o", dest="output", type=Path, metavar="FILE", help=f"default: PATH/{MANIFEST}")
    digest.add_argument("--format", choices=["text", "json"], default="text", help="for people, or for programs")


def _add_generate(commands: "argparse._SubParsersAction[_Parser]") -> None:
    generate = _command(
        commands,
        "generate",
        _generate,
        "generate text from a checkpoint, offline and greedily",
        prog="tidemill generate",
    )
    generate.add_argument("checkpoint", help="a folder, or bundled:NAME")
    generate.add_argument(
        "--prompt-ids", type=Path, required=True, help="JSON file with the prompts: a list of lists of token ids"
    )
    generate.add_argument("--max-tokens", type=int, default=64, help="tokens to generate for each prompt (default: 64)")
    _add_unit_options(generate)
    generate.add_argument("--format", choices=["json"], default="json", help="output format on stdout")
    generate.add_argument("--logits", type=Path, help="write the logits of the prompts to this .npz file")
    generate.add_argument(
        "--trace", type=Path, help="write a timeline of the ranks to this .json file, for ui.perfetto.dev"
    )
    generate.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    generate.add_argument("--port", type=int, help=argparse.SUPPRESS)
    generate.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)


def _add_unit_options(generate: _Parser) -> None:
    """Add the options about how a unit computes."""
    generate.add_argument("--ep", type=int, default=1, help="number of ranks to spread the experts over (default: 1)")
    generate.add_argument("--dtype", choices=["float32", "bfloat16", "fp8"], default="float32")
    generate.add_argument(
        "--expert-map", type=Path, help="JSON file with logical experts, [moe_layers][slots] (default: contiguous)"
    )
    generate.add_argument(
        "--deterministic", action="store_true", help="generate the same tokens for any batch, --ep and --expert-map"
    )
    generate.add_argument(
        "--overlap",
        choices=["none", "dual_batch", "five_stage"],
        default="none",
        help="overlap the two halves of a batch",
    )
    generate.add_argument(
        "--split",
        choices=["equal", "local_first"],
        default="equal",
        help="how tokens are split among the replicas of an expert",
    )
    generate.add_argument("--nodes", type=int, default=1, help="number of nodes to assume, for --split local_first")


def _command(
    commands: "argparse._SubParsersAction[_Parser]", name: str, run: object, summary: str, prog: str | None = None
) -> _Parser:
    """Return the parser of a new command. `prog` is the name by which users call it, if not `python -m runtime`."""
    command = commands.add_parser(name, help=summary, description=summary, prog=prog)
    command.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    command.set_defaults(run=run)
    return command


def _node(arguments: argparse.Namespace) -> None:
    from runtime.worker.membership import Membership
    from runtime.worker.node import run_node

    launch = read_unit_launch(arguments.launch)
    flags = [
        "--address",
        arguments.address,
        "--leader",
        arguments.leader,
        "--gateway",
        _gateway_host(arguments, launch),
        *(() if arguments.tls is None else ("--tls", str(arguments.tls))),
        *(() if arguments.control is None else ("--control", str(arguments.control))),
        *(() if arguments.next_epoch is None else ("--next-epoch", str(arguments.next_epoch))),
    ]
    membership = Membership(launch, arguments.node, arguments.address, arguments.leader)
    run_node(launch, arguments.launch, arguments.node, membership, flags, arguments.drain)


def _rank(arguments: argparse.Namespace) -> None:
    with _pause_garbage_collection():
        from runtime.worker.worker import Addresses, run_rank

    launch = read_unit_launch(arguments.launch)
    host, own = _gateway_host(arguments, launch), arguments.address
    folders = arguments.tls, arguments.control, arguments.next_epoch
    addresses = Addresses(arguments.node, own, arguments.leader, host, *folders)
    place, folder = _place(launch, arguments), os.environ.get(TRACE_FOLDER)
    with recording(Path(folder) / f"{launch.unit}-{place.rank}.json" if folder else None, place.rank):
        run_rank(launch, place, addresses)


def _gateway(arguments: argparse.Namespace) -> None:
    from runtime.gateway.serve import run

    launch, policy = read_gateway_launch(arguments.launch), Policy(arguments.balancer)
    given = (arguments.keys, arguments.tls, policy, arguments.gateways, arguments.weights, arguments.tokenizer)
    run(launch, arguments.address, arguments.drain, *given)


def _generate(arguments: argparse.Namespace) -> None:
    with _pause_garbage_collection():
        from runtime import offline as generate

    generate.run(generate.Job.from_arguments(arguments))


def _digest(arguments: argparse.Namespace) -> None:
    from runtime.checkpoint.command import write_digests

    as_json = arguments.format == "json"
    write_digests(arguments.checkpoint, arguments.output, usable_cpus(), as_json=as_json)


def _stage(arguments: argparse.Namespace) -> None:
    from runtime.checkpoint.stage import stage

    stage(arguments.source, arguments.destination, usable_cpus())


def _count(text: str) -> int:
    """Return a number of processes. Raises ValueError, which argparse reports, if it is none."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _seconds(text: str) -> float:
    """Return the seconds of a drain. Raises ValueError, which argparse reports, for other text or too long a drain."""
    seconds = float(text)
    if not 0 <= seconds <= MAX_DRAIN_S:
        raise ValueError(text)
    return seconds


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Pause garbage collection while torch is imported, and exempt the imported objects from later collections.

    Importing makes no garbage, and an eighth of its CPU time would go into looking for some.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _gateway_host(arguments: argparse.Namespace, launch: UnitLaunch) -> str:
    return arguments.gateway or launch.gateway.service


def _place(launch: UnitLaunch, arguments: argparse.Namespace) -> RankPlace:
    (rank,) = (each for each in launch.place_ranks(arguments.place) if each.local_rank == arguments.local_rank)
    return rank


def _end_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a bug's traceback and end at once: at a normal exit, asyncio's warnings about its tasks would bury it."""
    sys.__excepthook__(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    sys.excepthook = _end_at_once
    sys.stderr = _Log(sys.stderr.buffer, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)
    try:
        exit_status = main()
    except SystemExit as ended:  # raised in a node, by SIGTERM
        exit_status = ended.code if isinstance(ended.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_status)  # because gloo and the network thread may still wait for peers

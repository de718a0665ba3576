"""Run with SGLang's sources on PYTHONPATH: what its parser, its check and its map reader say of what we wrote.

A line with a JSON object comes in on stdin, and one goes out on stdout, until stdin ends: importing SGLang takes longer
than all answers. It knows nothing of Tidemill, and Tidemill's tests import nothing of SGLang.

Its reader of expert locations asks the running server for four things, which are replaced here: `get_exec` (the options
about experts), `get_parallel` (the sizes), `get_device` (the device), and `from_model_config` of
`ModelConfigForExpertLocation` (layers and experts of the checkpoint, which needs its files).
"""

import argparse
import contextlib
import io
import json
import logging
import sys
from types import SimpleNamespace


def main() -> None:
    """Answer what was asked: `commands`, `router`, `names` and `maps`, each a list."""
    for line in sys.stdin:
        asked = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            answer = {
                "commands": [_ask(_read_command, each) for each in asked["commands"]],
                "router": [_ask(_read_router, each) for each in asked["router"]],
                "names": [_names(each) for each in asked["names"]],
                "maps": [_ask(_read_map, each) for each in asked["maps"]],
            }
        print(json.dumps(answer), flush=True)


def _ask(read, question):
    """What is read, or under `refused` why it is not: the parser ends the process, and checks assert."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return read(question)
    except SystemExit:
        return {"refused": said.getvalue().strip().splitlines()[-1]}
    except (AssertionError, ValueError, KeyError, IndexError, RuntimeError, NotImplementedError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}


def parsed_command(words):
    """SGLang's own arguments, by exact option strings only, and checked. Raises ValueError on a deprecation warning."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    with _warnings() as heard:
        arguments = ServerArgs.from_cli_args(parser.parse_args(words))
    if heard:
        raise ValueError(heard[0])
    arguments.check_server_args()
    return arguments


def parsed_router(words):
    """The same of its router."""
    from sglang_router.router_args import RouterArgs

    parser = argparse.ArgumentParser(allow_abbrev=False)
    RouterArgs.add_cli_args(parser)
    arguments = RouterArgs.from_cli_args(parser.parse_args(words))
    arguments._validate_router_args()
    return arguments


def _read_command(words):
    names = ("tp_size", "attn_dp_size", "ep_size", "nnodes", "node_rank", "deepep_mode", "max_running_requests")
    arguments = parsed_command(words)
    return {name: getattr(arguments, name) for name in names}


def _read_router(words):
    arguments = parsed_router(words)
    names = ("selector", "prefill_selector", "decode_selector", "control_plane_api_keys")
    return {name: getattr(arguments, name) for name in names}


def _names(option):
    """All names of an option: what sets the same value. Empty if there is no such option."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    values = {action.dest for action in parser._actions if f"--{option}" in action.option_strings}
    same = [action for action in parser._actions if action.dest in values]
    return sorted(name[2:] for action in same for name in action.option_strings if name.startswith("--"))


@contextlib.contextmanager
def _warnings():
    heard = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("sglang.srt.arg_groups.argparse_actions")
    logger.addHandler(handler)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)


def _read_map(question):
    """The rows that SGLang has, and of each rank the slots that its tokens may go to, in one layer."""
    from sglang.srt.eplb import expert_location

    sizes = question["sizes"]
    experts = SimpleNamespace(
        init_expert_location=question["path"],
        ep_num_redundant_experts=sizes["redundant"],
        ep_dispatch_algorithm="dynamic",
        moe_a2a_backend=sizes["a2a"],
        ep_join_mode=None,
        elastic_ep_backend=None,
    )
    parallel = SimpleNamespace(ep_size=sizes["ep_size"], nnodes=sizes["nodes"], elastic_ep_initial_size=None)
    model = expert_location.ModelConfigForExpertLocation(sizes["layers"], sizes["experts"], None)
    expert_location.get_exec = lambda: SimpleNamespace(moe=experts)
    expert_location.get_parallel = lambda: parallel
    expert_location.get_device = lambda: SimpleNamespace(device="cpu")
    expert_location.ModelConfigForExpertLocation.from_model_config = staticmethod(lambda _: model)
    read = {rank: expert_location.compute_initial_expert_location_metadata(None, rank) for rank in question["ranks"]}
    layer = question["layer"]
    return {
        "rows": next(iter(read.values())).physical_to_logical_map.tolist(),
        "targets": {rank: _targets(each, layer) for rank, each in read.items()},
    }


def _targets(read, layer):
    numbers = read.logical_to_all_physical_map_num_valid[layer].tolist()
    rows = read.logical_to_all_physical_map[layer].tolist()
    return [slots[:number] for slots, number in zip(rows, numbers, strict=True)]


if __name__ == "__main__":
    main()

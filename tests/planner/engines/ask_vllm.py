"""Run with vLLM's sources on PYTHONPATH: what its parser and its router's say of the commands that we render.

A line with a JSON object comes in on stdin, and one goes out on stdout, until stdin ends: importing vLLM takes longer
than all answers. It knows nothing of Tidemill, and Tidemill's tests import nothing of vLLM.
"""

import argparse
import contextlib
import io
import json
import os
import sys

# Without a GPU it must be told for what it was built.
os.environ["VLLM_TARGET_DEVICE"] = "cpu"


def main() -> None:
    """Answer what was asked: `commands`, `router` and `names`, each a list."""
    for line in sys.stdin:
        asked = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            answer = {
                "commands": [_ask(_read_command, each) for each in asked["commands"]],
                "router": [_ask(_read_router, each) for each in asked["router"]],
                "names": [_names(each) for each in asked["names"]],
            }
        print(json.dumps(answer), flush=True)


def _ask(read, words):
    """What is read, or under `refused` why it is not: a parser ends the process, and classes of options raise."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return read(words)
    except SystemExit:
        return {"refused": said.getvalue().partition("error: ")[2]}
    except (TypeError, ValueError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}


def _read_command(words):
    """The sizes of a server, by exact option strings only."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.common.cli_args import validate_parsed_serve_args

    parsed = _server_parser().parse_args(words)
    validate_parsed_serve_args(parsed)
    arguments = AsyncEngineArgs.from_cli_args(parsed)
    names = ("tensor_parallel_size", "data_parallel_size", "data_parallel_size_local", "nnodes", "node_rank")
    return {name: getattr(arguments, name) for name in (*names, "max_num_seqs", "enable_eplb")}


def _names(option):
    """All names of an option: what sets the same value. Empty if there is no such option."""
    parser = _server_parser()
    values = {action.dest for action in parser._actions if f"--{option}" in action.option_strings}
    same = [action for action in parser._actions if action.dest in values]
    return sorted(name[2:] for action in same for name in action.option_strings if name.startswith("--"))


def _read_router(words):
    """The selectors of a router."""
    from vllm_router.router_args import RouterArgs

    parser = argparse.ArgumentParser(allow_abbrev=False)
    RouterArgs.add_cli_args(parser)
    arguments = RouterArgs.from_cli_args(parser.parse_args(words))
    arguments._validate_router_args()
    return {name: getattr(arguments, name) for name in ("selector", "prefill_selector", "decode_selector")}


def _server_parser():
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser(allow_abbrev=False))


if __name__ == "__main__":
    main()

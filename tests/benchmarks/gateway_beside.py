"""Our gateway beside two proxies, each alone on one core with the same streams: how many it holds, how fast.

    python -m tests.benchmarks.gateway_beside VENVS

LiteLLM's proxy and SGLang's router pass on what a stub server says in OpenAI's server-sent events. Ours has more to do:
it makes the events, from the tokens of stub ranks. VENVS is a folder with an environment for each of the others:

    for proxy in litellm[proxy]==1.106.2 sglang-router==0.3.2; do
        python -m venv VENVS/${proxy%%[[=]*} && VENVS/${proxy%%[[=]*}/bin/pip install $proxy
    done

The proxy has core 0 for itself; the stub and the clients share core 1. Prints a table, and exits with 1 unless ours
holds as many streams and passes on as many tokens as each of the others. About 3 minutes.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.gateway import HOST, MAX_REQUESTS, gateway, resident_mib, streams, until_listening
from tests.benchmarks.goals import Goals

STUB_PORT, PROXY_PORT = 8100, 8200
RUNS = (("held", 2000, 100), ("paced", 400, 20))
ALLOWED = "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"  # it asks for no key then, as the others
URL = f"http://{HOST}:{STUB_PORT}"


def main(venvs):
    """Run all, and hold ours against the others."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    found = {"tidemill": ours(), "sglang-router": proxied(router(venvs)), "litellm": proxied(litellm(venvs))}
    print(f"{'':15}{'streams':>9}{'tokens/s':>10}{'a CPU s':>9}{'worst gap':>11}{'memory':>10}")
    for name, runs in found.items():
        for run, (num_running, rate, per_cpu_s, gap_s, mib) in runs.items():
            print(f"{name:15}{num_running:9,}{rate:10,.0f}{per_cpu_s:9,.0f}{gap_s:9.2f} s{mib:6,} MiB  {run}")
    goals = Goals()
    for name in ("sglang-router", "litellm"):
        for run, *_ in RUNS:
            mine, other = found["tidemill"][run], found[name][run]
            goals.check(f"{run}: our streams beside {name}'s", mine[0], ">=", other[0])
            goals.check(f"{run}: our tokens/s of {name}'s", mine[1] / max(other[1], 1), ">=", 0.98)
    return goals.report()


def ours():
    """Both runs of our gateway."""
    with gateway(MAX_REQUESTS) as process:
        return {
            run: (*asyncio.run(streams(process.pid, num_streams, step_ms)), resident_mib(process.pid))
            for run, num_streams, step_ms in RUNS
        }


def proxied(command):
    """Both runs of a proxy, which is made anew for each pace: the stub server has one pace."""
    found = {}
    for run, num_streams, step_ms in RUNS:
        with stub(step_ms), proxy(command) as process:
            measured = asyncio.run(streams(process.pid, num_streams, step_ms, PROXY_PORT))
            found[run] = (*measured, resident_mib(process.pid))
    return found


def router(venvs):
    """The command line of SGLang's router. Its limits on requests and time are lifted."""
    words = ["--host", HOST, "--port", PROXY_PORT, "--worker-urls", URL, "--policy", "round_robin", "--disable-retries"]
    words += [
        "--disable-health-check",
        "--disable-circuit-breaker",
        "--max-concurrent-requests",
        "-1",
        "--log-level",
        "warn",
    ]
    return [venvs / "sglang-router" / "bin" / "python", "-m", "sglang_router.launch_router", *words]


def litellm(venvs):
    """The command line of LiteLLM's proxy, one worker."""
    upstream = {"model": "text-completion-openai/m", "api_base": f"{URL}/v1", "api_key": "none"}
    settings = {"model_list": [{"model_name": "m", "litellm_params": upstream}]}
    file = Path(tempfile.mkdtemp()) / "litellm.yaml"
    file.write_text(json.dumps(settings))
    words = ["--config", file, "--host", HOST, "--port", PROXY_PORT, "--num_workers", "1", "--telemetry", "False"]
    return [venvs / "litellm" / "bin" / "litellm", *words]


@contextmanager
def stub(step_ms):
    """The server behind the proxies, on core 1."""
    words = [sys.executable, "-m", "tests.benchmarks.sse_stub", HOST, str(STUB_PORT), str(step_ms)]
    with ended(subprocess.Popen(["taskset", "-c", "1", *words])):
        until_listening(STUB_PORT)
        yield


@contextmanager
def proxy(command):
    """A proxy on core 0."""
    log = open(f"/tmp/beside-{Path(command[0]).parent.parent.name}.log", "wb")  # noqa: SIM115
    words = ["taskset", "-c", "0", *map(str, command)]
    environment = os.environ | {
        "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}",
        "PYTHONPATH": "",
        ALLOWED: "true",
    }
    with log, ended(subprocess.Popen(words, stdout=log, stderr=log, env=environment)) as process:
        until_listening(PROXY_PORT, patience_s=120)
        yield process


@contextmanager
def ended(process):
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))

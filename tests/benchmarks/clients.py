"""Whether clients that others wrote complete a run against the demo without an error, each as it is published.

`python -m tests.benchmarks.clients VENVS`, exit 1 on a missed goal. VENVS is a folder with an environment for each
client, because their dependencies do not agree; it is not made here:

    for client in guidellm==0.8.1 aiperf==0.13.0 schemathesis==4.32.5; do
        python -m venv VENVS/${client%%=*} && VENVS/${client%%=*}/bin/pip install $client
    done

guidellm and aiperf ask for completions and chats, streamed, of a fixed length whatever the model says. schemathesis
asks for what `/openapi.json` allows and for what it does not; it looks for failures of ours (5xx), answers that are not
described, and methods that are taken though they should not be. The goals are zero errors; nothing is timed.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.goals import Goals
from tests.stacks.deployments import CHECKPOINT, REPOSITORY, Tidemill

MODEL = "tidemill-demo"
HOST = "127.79.1.1"  # beside those of the tests
NUM_REQUESTS, STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = 8, 2, 64, 24
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
)
TIMEOUT_S = 900
POLL_S = "5"  # assumed: of guidellm, see there


def main(venvs):
    """Run each client, and hold what it counted against the goals."""
    goals = Goals()
    with tempfile.TemporaryDirectory() as folder:
        demo = Tidemill(HOST, Path(folder) / "state")
        done = demo.up()
        if done.returncode:
            raise SystemExit(done.stderr)
        try:
            url = f"http://{demo.host}:8000"
            for route in ("completions", "chat/completions"):
                good, bad = guidellm(venvs, url, route, Path(folder) / "guidellm.json")
                goals.check(f"guidellm, /v1/{route}: answered", good, "==", NUM_REQUESTS)
                goals.check(f"guidellm, /v1/{route}: errors", bad, "==", 0)
            for endpoint in ("completions", "chat"):
                good, bad = aiperf(venvs, url, endpoint, Path(folder) / f"aiperf-{endpoint}")
                goals.check(f"aiperf, {endpoint}: answered", good, "==", NUM_REQUESTS)
                goals.check(f"aiperf, {endpoint}: errors", bad, "==", 0)
            goals.check("schemathesis: exit status", schemathesis(venvs, url, folder), "==", 0)
        finally:
            demo.run("down")
    return goals.report()


def guidellm(venvs, url, route, report):
    """(answered, failed) requests, all that its scheduler saw.

    When the last request has ended, guidellm's `received_callback` says first that all is done, and then hands the
    request on (`scheduler/worker_group.py`). Whoever waits for it looks every `mp_poll_interval`, 0.1 s, whether all is
    done, and goes: on a busy machine before the last request is there, which is then never counted. A longer interval
    leaves time for it.
    """
    run(
        venvs / "guidellm" / "bin" / "guidellm",
        "run",
        *("--backend", f"kind=openai_http,target={url},request_format=/v1/{route}"),
        *("--profile", f"kind=concurrent,streams={STREAMS}"),
        *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={CHECKPOINT}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"),
        *("--output", f"kind=json,path={report}"),
        "--disable-console-interactive",
        GUIDELLM__MP_POLL_INTERVAL=POLL_S,
    )
    made = json.loads(report.read_text())["benchmarks"][0]["scheduler_metrics"]["requests_made"]
    return made["successful"], made["errored"] + made["incomplete"]


def aiperf(venvs, url, endpoint, folder):
    """(answered, failed) requests."""
    run(
        venvs / "aiperf" / "bin" / "aiperf",
        "profile",
        *("-m", MODEL, "--url", url, "--endpoint-type", endpoint, "--streaming", "--tokenizer", CHECKPOINT),
        *("--request-count", NUM_REQUESTS, "--concurrency", STREAMS),
        *("--synthetic-input-tokens-mean", PROMPT_TOKENS, "--output-tokens-mean", OUTPUT_TOKENS),
        *("--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{OUTPUT_TOKENS}"),
        *(("--use-server-token-count", "--per-chunk-usage") if endpoint == "chat" else ()),
        *("--output-artifact-dir", folder, "--ui", "none"),
    )
    records = [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]
    failed = sum(record.get("error") is not None for record in records)
    return len(records) - failed, failed


def schemathesis(venvs, url, folder):
    """The exit status: 1 if a check failed. It keeps what it found in `folder`."""
    words = ("run", f"{url}/openapi.json", "--checks", ",".join(CHECKS), "--max-examples", 60, "--request-timeout", 60)
    hooks = {"SCHEMATHESIS_HOOKS": "tests.benchmarks.schemathesis_hooks"}
    return run(venvs / "schemathesis" / "bin" / "schemathesis", *words, folder=folder, may_fail=True, **hooks)


def run(*words, folder=None, may_fail=False, **environment):
    """Run to the end; return the exit status."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment
    command = list(map(str, words))
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-2000:], sep="\n")
        assert may_fail, f"{words[0]} ended with {done.returncode}"
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))

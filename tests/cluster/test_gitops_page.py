"""docs/gitops.md, from an empty repository to the first rebalancing: every command of it, run as written.

The addresses are those of a real Gitea, and of a stand-in for Prometheus, which has what ranks recorded. What the page
has a person do at the forge, merging, is done by REST. What it has a person do at a cluster is not done here:
`test_gitops_files.py` holds the file against Flux's definitions.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from planner.facts.drawn import draw_loads
from tests.stacks.deployments import REPOSITORY, wait_until

PAGE = (REPOSITORY / "docs" / "gitops.md").read_text()
SECTION = PAGE.partition("## From an empty repository to the first rebalancing\n")[2].partition("\n## ")[0]
BLOCKS = [
    (language, textwrap.dedent(text))
    for language, text in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", SECTION, re.M | re.S)
]
TIDEMILL = f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m stacks.cli "$@"\n'


class Prometheus(BaseHTTPRequestHandler):
    """Answers an instant query with the loads of DeepSeek-R1's experts, drawn with `seed`."""

    seed = 7

    def log_message(self, *_):
        pass

    def do_GET(self):
        labels = {"model_name": "deepseek-r1", "unit": "decode-0", "rank": "0"}
        result = [
            {"metric": labels | {"moe_layer": str(layer), "expert": str(expert)}, "value": [0, str(int(1000 * load))]}
            for layer, row in enumerate(draw_loads(1.01, self.seed, 58, 256, 8))
            for expert, load in enumerate(row)
        ]
        content = json.dumps({"data": {"result": result}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def prometheus():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Prometheus)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run_block(text, folder, environment):
    done = subprocess.run(
        ["bash", "-ec", text], cwd=folder, env=environment, check=False, capture_output=True, text=True
    )

    assert done.returncode == 0, f"{text}{done.stdout}{done.stderr}"
    return done.stdout


def test_a_newcomer_gets_to_the_first_rebalancing(gitea, prometheus, tmp_path, monkeypatch):
    """By the page alone; of its three pull requests the last one has new maps that are worth their restarts."""
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "tidemill").write_text(TIDEMILL)
    (tmp_path / "programs" / "tidemill").chmod(0o755)
    header = f"Authorization: token {gitea.token}"  # the page's reader has pushed to the forge before
    identity = {"user.name": "Ada", "user.email": "ada@mill.example", "http.extraHeader": header}
    environment = os.environ | {
        "PATH": f"{tmp_path / 'programs'}:{os.environ['PATH']}",
        "TIDEMILL_TOKEN": gitea.token,
        "GIT_CONFIG_COUNT": str(len(identity)),
        **{f"GIT_CONFIG_KEY_{number}": name for number, name in enumerate(identity)},
        **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(identity.values())},
    }
    address = gitea.create_repository("deployments")
    repository = f"/repos/{address.split('/', 3)[3].removesuffix('.git')}"
    edits = {
        "https://git.example/team/deployments.git": address,
        "http://prometheus:9090": prometheus,
        "export TIDEMILL_TOKEN=...": "",
    }

    def run(number, folder):
        text = BLOCKS[number][1]
        for written, stood_for in edits.items():
            text = text.replace(written, stood_for)
        return run_block(text, folder, environment)

    def merge(number):
        pull = f"{repository}/pulls/{number}"
        gitea.merge(pull, "merge")
        return gitea.ask("GET", pull)["title"]

    folder = tmp_path / "deployments"
    run(0, tmp_path)
    (folder / "spec.yaml").write_text(BLOCKS[1][1])
    run(2, folder)
    wait_until(lambda: not gitea.ask("GET", repository)["empty"])
    run(3, folder)
    titles = [merge(1)]
    run(4, folder)
    run(5, folder)
    titles.append(merge(2))
    monkeypatch.setattr(Prometheus, "seed", 8)
    told = run(6, folder)

    assert [language for language, _ in BLOCKS] == ["", "yaml", "", "", "", "", ""]
    assert titles == ["deepseek-r1: no_restart", "deepseek-r1: degraded, restarts 5 units"]
    assert "\nopened " in told
    assert "worth it: " in told
    assert len(gitea.ask("GET", f"{repository}/pulls?state=open")) == 1

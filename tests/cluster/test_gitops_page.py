"""docs/gitops.md, from an empty repository to the first rebalancing, and its promotion: every command, run as written.

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
TIDEMILL = f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m stacks.cli "$@"\n'


def blocks_of(section):
    """Return the language and text of each block below a heading."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.M | re.S)
    return [(language, textwrap.dedent(block)) for language, block in found]


BLOCKS = blocks_of("From an empty repository to the first rebalancing")
PROMOTION = blocks_of("Several environments")


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


class Reader:
    """Someone who runs a page's commands as written, at a forge to which they have pushed before."""

    def __init__(self, gitea, folder, name, stood_for):
        self.gitea, self.folder = gitea, folder
        address = gitea.create_repository(name)
        self.repository = f"/repos/{address.split('/', 3)[3].removesuffix('.git')}"
        self.stood_for = {
            "https://git.example/team/deployments.git": address,
            "export TIDEMILL_TOKEN=...": "",
        } | stood_for
        programs = folder / "programs"
        programs.mkdir()
        (programs / "tidemill").write_text(TIDEMILL)
        (programs / "tidemill").chmod(0o755)
        header = f"Authorization: token {gitea.token}"
        identity = {"user.name": "Ada", "user.email": "ada@mill.example", "http.extraHeader": header}
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "TIDEMILL_TOKEN": gitea.token,
            "GIT_CONFIG_COUNT": str(len(identity)),
            **{f"GIT_CONFIG_KEY_{number}": name for number, name in enumerate(identity)},
            **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(identity.values())},
        }

    def run(self, block, folder):
        for written, stood_for in self.stood_for.items():
            block = block.replace(written, stood_for)
        call = ["bash", "-ec", block]
        done = subprocess.run(call, cwd=folder, env=self.environment, check=False, capture_output=True, text=True)

        assert done.returncode == 0, f"{block}{done.stdout}{done.stderr}"
        return done.stdout

    def wait_for_push(self):
        wait_until(lambda: not self.gitea.ask("GET", self.repository)["empty"])

    def protect_main(self):
        rule = {"rule_name": "main", "enable_push": True, "block_on_outdated_branch": True}
        self.gitea.ask("POST", f"{self.repository}/branch_protections", rule)

    def merge(self, number):
        pull = f"{self.repository}/pulls/{number}"
        self.gitea.merge(pull, "merge")
        return self.gitea.ask("GET", pull)


def test_a_newcomer_gets_to_the_first_rebalancing(gitea, prometheus, tmp_path, monkeypatch):
    """By the page alone; of its three pull requests the last one has new maps that are worth their restarts."""
    reader = Reader(gitea, tmp_path, "deployments", {"http://prometheus:9090": prometheus})
    texts = [text for _, text in BLOCKS]
    folder = tmp_path / "deployments"
    reader.run(texts[0], tmp_path)
    (folder / "spec.yaml").write_text(texts[1])
    reader.run(texts[2], folder)
    reader.wait_for_push()
    reader.protect_main()
    reader.run(texts[3], folder)
    titles = [reader.merge(1)["title"]]
    reader.run(texts[4], folder)
    reader.run(texts[5], folder)
    titles.append(reader.merge(2)["title"])
    monkeypatch.setattr(Prometheus, "seed", 8)
    told = reader.run(texts[6], folder)

    assert [language for language, _ in BLOCKS] == ["", "yaml", "", "", "", "", ""]
    assert titles == ["deepseek-r1 (deploy): no_restart", "deepseek-r1 (deploy): degraded, restarts 5 units"]
    assert "\nopened " in told
    assert "worth it: " in told
    assert len(gitea.ask("GET", f"{reader.repository}/pulls?state=open")) == 1


def test_a_change_is_promoted(gitea, tmp_path):
    """What dev was given is proposed for stage: its release file and its folder change, and the text is its diff."""
    reader = Reader(gitea, tmp_path, "environments", {})
    folder = tmp_path / "deployments"
    reader.run(BLOCKS[0][1], tmp_path)
    (folder / "deploy").mkdir()
    (folder / "deploy" / "spec.yaml").write_text(BLOCKS[1][1])
    begin, change, promote = (text for _, text in PROMOTION)
    reader.run(begin, folder)
    reader.wait_for_push()
    reader.run(change, folder)
    first = reader.merge(1)
    reader.run(promote, folder)
    second = reader.merge(2)
    names = [each["filename"] for each in gitea.ask("GET", f"{reader.repository}/pulls/2/files?limit=50")]
    release = "deploy/stage.release.yaml"

    assert first["title"] == "deepseek-r1 (deploy/dev): degraded, restarts 4 units"
    assert second["title"] == "deepseek-r1 (deploy/stage): degraded, restarts 4 units"
    assert second["head"]["ref"] == "tidemill/deploy.stage"
    assert "image" in second["body"]
    assert release in names
    assert all(name == release or name.startswith("deploy/stage/") for name in names)

"""A Gitea on loopback, for tests that push to a forge and open pull requests there.

It refuses to run as root, so root's tests give it a user namespace, in which it is nobody and may still use root's
files. All its state is thrown away.
"""

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.processes import Daemons
from tests.ports import free_port
from tests.stacks.deployments import wait_until

__all__ = ["Gitea", "running_gitea"]

USER = "mill"
TRY_LATER = 405
CONFIGURATION = """\
RUN_USER = {user}
WORK_PATH = {folder}
[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = {port}
ROOT_URL = {address}/
OFFLINE_MODE = true
STATIC_ROOT_PATH = {static}
DISABLE_SSH = true
[database]
DB_TYPE = sqlite3
PATH = {folder}/gitea.db
[security]
INSTALL_LOCK = true
PASSWORD_HASH_ALGO = pbkdf2$1$50
[log]
LEVEL = Info
[indexer]
ISSUE_INDEXER_TYPE = db
[cron]
ENABLED = false
[service]
DISABLE_REGISTRATION = true
[actions]
ENABLED = false
"""


@dataclass(frozen=True)
class Gitea:
    """A running Gitea, its only user and that user's token."""

    address: str
    token: str
    log: Path

    def create_repository(self, name: str) -> str:
        """Create an empty repository, and return its address."""
        self.ask("POST", "/user/repos", {"name": name, "default_branch": "main"})
        return f"{self.address}/{USER}/{name}.git"

    def merge(self, pull_request: str, how: str) -> None:
        """Merge the pull request at this path of the API. Gitea refuses while it still looks at the last push."""

        def is_merged() -> bool:
            try:
                self.ask("POST", f"{pull_request}/merge", {"Do": how})
            except urllib.error.HTTPError as error:
                if error.code != TRY_LATER:
                    raise
            return self.ask("GET", pull_request)["merged"]

        wait_until(is_merged)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the JSON of an answer; None for an empty one."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}/api/v1{path}", content, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = response.read()
        return json.loads(answer) if answer else None


@contextmanager
def running_gitea(program: Path, folder: Path) -> Iterator[Gitea]:
    """Start Gitea in an empty folder, with one user, and stop it at the end."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    not_as_root = ("unshare", "--user") if os.geteuid() == 0 else ()
    user = "nobody" if not_as_root else os.environ.get("USER", "nobody")
    configuration = folder / "app.ini"
    configuration.write_text(
        CONFIGURATION.format(user=user, folder=folder, port=port, address=address, static=program.parent)
    )
    environment = {"HOME": str(folder), "USER": user, "GITEA_WORK_DIR": str(folder)}

    def call(*words: str) -> str:
        command = [*not_as_root, program, *words, "--config", configuration]
        done = subprocess.run(command, env=os.environ | environment, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call("migrate")
    options = ["--username", USER, "--password", "a-password", "--email", "mill@mill.example", "--admin"]
    told = call("admin", "user", "create", *options, "--access-token", "--must-change-password=false")
    token = told.partition("successfully created... ")[2].split()[0]
    daemons = Daemons(folder, inside=not_as_root, environment=environment)
    daemons.start("gitea", program, "web", "--config", configuration)
    gitea = Gitea(address, token, folder / "gitea.log")
    try:
        daemons.wait_until(lambda: _answers(gitea), "Gitea answers", 60)
        yield gitea
    finally:
        daemons.stop()


def _answers(gitea: Gitea) -> bool:
    try:
        return "version" in gitea.ask("GET", "/version")
    except OSError:
        return False

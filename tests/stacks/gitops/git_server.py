"""Git repositories served by git's own `http-backend`, for tests of what git asks a remote."""

import os
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["git", "serve_repositories"]

NAME = ("-c", "user.name=Ada", "-c", "user.email=ada@git.example")


def git(folder, *words):
    return subprocess.run(["git", *NAME, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def serve_repositories(folder):
    """Serve the repositories in `folder`, pushes included. Yield the address, and the list of paths that are asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            path, _, query = self.path.partition("?")
            asked.append(path)
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            variables = {
                "GIT_PROJECT_ROOT": str(folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(content)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "REMOTE_USER": "ada",
            }
            done = subprocess.run(
                ["git", "-c", "http.receivepack=true", "http-backend"],
                input=content,
                capture_output=True,
                env=os.environ | variables,
                check=True,
            )
            head, _, body = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()

"""The proxy in front of vLLM's router: callers reach its routes for answers, and nothing else.

The router admits every call that reaches its port: it adds and removes servers for anybody, and passes unknown paths on
to units. No option closes this. So it listens on the pod's loopback address, and nginx beside it passes on only the
paths below. Each is an exact path, and the router gets the path as it is written here, not as the caller wrote it.

nginx also repeats a request for which the router answers 500, 502 or 503. In prefill and decode this router does not
try again: when a decode process dies, each request at it fails, until the next look at its health. nginx repeats only
while a caller has got nothing, so an answer that has begun ends with its decode process.

Kubernetes starts a sidecar before the pod's other containers and ends it after them, so streams last as long as the
router does. Router and proxy share the pod's ports, and the router's probes go through the proxy.

Sources: vllm-router 0.1.17, asked, and github.com/vllm-project/router 00edc4e9 src/server.rs (its routes, and one check
of keys for all callers alike); nginx.org/en/docs/http/ngx_http_proxy_module.html (proxy_next_upstream, proxy_pass with
a path).
"""

from dataclasses import dataclass

ROUTER_ADDRESS, ROUTER_PORT = "127.0.0.1", 8001
EDGE_FILE = "edge.conf"  # in the folder where launch files are mounted
EDGE_COMMAND = ("nginx", "-e", "stderr", "-c", f"/etc/tidemill/{EDGE_FILE}")

ANSWERED = {  # method -> the paths that callers and probes may call
    "GET": ("/health", "/liveness", "/readiness", "/v1/models"),
    "POST": ("/v1/chat/completions", "/v1/completions"),
}
TRIES = 3  # assumed: with two decode units the second or third try is at the living one
# The router's own limits, of vllm-router 0.1.17 router_args.py: request_timeout_secs and max_payload_size.
ANSWER_S, MAX_BODY_MIB = 1800, 512
WORKERS, CONNECTIONS = 4, 16_384  # assumed: enough for thousands of streams, which nobody has measured
FILES = 2 * CONNECTIONS  # a large body is a file, too; a container may begin with a limit of 1,024

CONFIG = """\
daemon off;
pid /tmp/nginx.pid;
worker_processes {workers};
worker_rlimit_nofile {files};
events {{
    worker_connections {connections};
}}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path /tmp/nginx-bodies;
    proxy_temp_path /tmp/nginx-proxy;
    fastcgi_temp_path /tmp/nginx-unused;
    uwsgi_temp_path /tmp/nginx-unused;
    scgi_temp_path /tmp/nginx-unused;
    client_max_body_size {max_body_mib}m;
    upstream router {{
        # Each line is a try at the one router.
{tries}
        keepalive 64;
    }}
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_buffering off;
    proxy_read_timeout {answer_s}s;
    proxy_next_upstream http_500 http_502 http_503 non_idempotent;
    server {{
        listen {port};
        location / {{
            return 404;
        }}
{locations}
    }}
}}
"""
TRY = "        server {address}:{port} max_fails=0;"
LOCATION = """\
        location = {path} {{
            limit_except {method} {{ deny all; }}
            proxy_pass http://router{path};
        }}"""


@dataclass(frozen=True)
class Edge:
    """The proxy in a router's pod: its image, and nginx's configuration."""

    image: str
    config: str


def make_edge(port: int, image: str) -> Edge:
    """Return the proxy that listens at `port` and passes requests to the router behind it."""
    locations = [LOCATION.format(path=path, method=method) for method, paths in ANSWERED.items() for path in paths]
    config = CONFIG.format(
        workers=WORKERS,
        connections=CONNECTIONS,
        files=FILES,
        max_body_mib=MAX_BODY_MIB,
        tries="\n".join([TRY.format(address=ROUTER_ADDRESS, port=ROUTER_PORT)] * TRIES),
        answer_s=ANSWER_S,
        port=port,
        locations="\n".join(locations),
    )
    return Edge(image, config)

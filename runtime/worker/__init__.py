"""One rank as a process, with its sockets and metrics; and a node: its place, its ranks."""

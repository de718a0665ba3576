"""One rank as a process, with its sockets and metrics; and a node's ranks as child processes."""

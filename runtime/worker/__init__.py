"""One rank as a process, and a node's ranks as its children."""

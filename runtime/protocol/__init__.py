"""The protocol between processes: messages, frames, sockets, TLS, the metrics port."""

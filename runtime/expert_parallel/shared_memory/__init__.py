"""Exchanges between ranks of one CPU node, by shared memory and pipes."""

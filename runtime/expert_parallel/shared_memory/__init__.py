"""Ranks of one CPU node: common memory and pipes instead of messages."""

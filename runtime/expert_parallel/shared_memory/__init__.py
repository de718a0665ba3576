"""What helps only the ranks of one CPU node: common memory and pipes instead of messages."""

"""Kinds of attention, one file each: matrices, KV of a request, and working values.

Every kind has the interface of `kind.py`, so layouts need not know which kinds there are. A command imports only the
kinds of its spec's model.
"""

"""Kinds of attention, one file each: their matrices, the KV of a request, and the values in memory during a step.

Every kind has the interface of `kind.py`, so layouts need not know which kinds there are. A command imports only the
kinds of its spec's model.
"""

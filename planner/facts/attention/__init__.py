"""How a layer mixes tokens, one file a kind: its matrices, the KV that one request keeps there, its working values.

Every kind answers the questions of `kind.py`, so that layouts need not know which kinds there are. A command imports
the kinds of the model that its spec names.
"""

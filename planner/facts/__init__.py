"""Facts that hold for any spec: GPUs with their sources, parts of models, quantities, names, loads, digests."""

"""What is true before any spec: GPUs with their sources, what models consist of, quantities, names, loads, digests."""

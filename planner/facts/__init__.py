"""What is true before any spec: models and GPUs with their sources, quantities, names, loads, digests."""

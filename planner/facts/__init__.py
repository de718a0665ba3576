"""What no spec changes: GPUs with their sources, parts of models, quantities, names, file formats, digests."""

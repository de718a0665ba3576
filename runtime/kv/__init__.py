"""Latent KV in pages, its transfer to decode ranks, and the prefix cache."""

"""Latent KV in pages, and its travel to decode."""

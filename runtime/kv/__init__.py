"""Latent KV: pages, transfer and prefix cache."""

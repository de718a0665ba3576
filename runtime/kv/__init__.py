"""Latent KV in pages, and its travel from prefill to decode."""

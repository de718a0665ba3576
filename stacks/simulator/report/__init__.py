"""The results of simulations as text, JSON and pictures."""

"""The gateway's view of ranks: their states, loads and cached prompts, and the choice of ranks for a request.

The registry knows who is connected, the ledgers what each rank was given, the prefix index what it holds of earlier
prompts; the router chooses.
"""

"""The gateway's view of ranks, and which of them gets a request.

The registry knows who is connected, the ledgers what each rank was given, the prefix index what it holds of earlier
prompts; the router chooses.
"""

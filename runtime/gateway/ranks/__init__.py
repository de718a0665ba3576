"""What ranks do and hold, and which gets a request.

The registry knows who is connected, the ledgers what each rank was given, the prefix index what it holds of earlier
prompts; the router chooses.
"""

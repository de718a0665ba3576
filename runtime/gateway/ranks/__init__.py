"""What ranks have to do, and which gets a request.

The registry knows who is connected, the ledgers know what each rank was given, the router chooses.
"""

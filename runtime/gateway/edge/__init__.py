"""What stands between the gateway and whoever connects to it.

HTTP's syntax, open connections, slow clients, retries, errors, and processes at the ranks' port that have not said who
they are. It knows no other room.
"""

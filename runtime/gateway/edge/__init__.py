"""What stands between the gateway and clients or processes that nobody has authenticated.

HTTP's syntax, open connections, slow clients, retries, errors, and processes at the ranks' port that have not said who
they are. It knows no other room.
"""

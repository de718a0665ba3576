"""A plan on this one machine: the same launch files, one loopback address for each node, processes for pods.

up       compiles nothing and decides nothing: it writes the plan's files and starts the supervisor
supervisor.py   owns the processes, watches them, and keeps the record
record.py       what runs here, for `status`, `down` and a second `up`
"""

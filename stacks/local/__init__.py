"""A plan on this machine: the same launch files, a loopback address for each node, processes instead of pods.

deployment.py   writes the plan's files, starts the supervisor, follows and stops it; it decides nothing
supervisor.py   owns the processes, watches them, and keeps the record
played_day.py   when units start and stop while a day is played; it starts nothing
run_folder.py   the record of what runs here, for `status`, `down` and a second `up`
find.py         which deployment a command means
"""

"""Units onto nodes: how good a placement is, how good one can be, and the search for it.

Each unit has its nodes to itself, one pod a node, on nodes that take pods and have the right GPUs. Near a previous plan
a unit keeps its nodes if it wants as many as it had and all of them are usable. The others are placed around it. Four
counts say how good a placement is, in this order, each beside a bound (`quality.py`):
    1. whole units under as few leaf switches as possible, or in as few NVLink domains where these have several nodes
    2. states of the schedule that use few nodes leave whole racks free
    3. no rack and no power domain takes more decode units with it than it must
    4. units that cannot keep all their nodes keep many

How the files go together:
    place.py     the pass `place_units`: which search
    enough.py    whether there are enough nodes, wherever units go
    task.py      units, which of them a previous plan keeps in place, and cells of nodes that stand alike
    quality.py   counts how good an assignment is, beside what none can beat (bound.py)
    greedy.py    fill.py places units one by one, improve.py changes hands, step by step, in an arrangement.py: where
                 there are leaves first among them (leafwise.py), then among racks
    exact.py     small tasks to the end, as an integer program (program.py: HiGHS)
    nodes.py     names for the nodes of an assignment

Phases that run on different GPUs are placed apart, each on the nodes that have its own.

It does not look at traffic between units: KV goes from any prefill to any decode.
"""

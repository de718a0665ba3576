"""Place units on nodes: measure and bound placements, and search good ones.

Units share no nodes. A unit has one pod per node, on nodes that take pods and have the right GPUs. With a previous plan
a unit keeps its nodes if it needs as many as before and all are usable. The other units are placed around it. A
placement is judged by these goals, in this order, each with a bound (`quality.py`):
    1. each unit under as few leaf switches as possible, or in as few NVLink domains if these have several nodes
    2. states of the schedule that use few nodes leave whole racks free
    3. losing a rack stops as few decode units as possible
    4. units that cannot keep all their previous nodes keep as many as possible

How the files go together:
    place.py     the pass `place_units`
    task.py      units, which of them stay in place, and cells of interchangeable nodes
    quality.py   counts the goals of an assignment, with bounds
    greedy.py    the search: fill.py places units one by one, and improve.py improves the result step by step
                 (arrangement.py): first among leaves if there are any, then among racks
    nodes.py     the names of an assignment's nodes

Phases that run on different types of GPU are placed independently, each on the nodes with its type.

Traffic between units does not count: KV goes from any prefill unit to any decode unit.
"""

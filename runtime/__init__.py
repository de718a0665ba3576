"""What runs in a pod: PyTorch expert-parallel inference, prefill and decode as separate units, and their gateway.

It meets the planner only in the launch file (`launch.py`) and imports nothing of planner, templates or stacks.
"""

"""The DeepSeek-V3 computation. Start in `deepseek.py`.

`runtime/kernels/__init__.py` has the legend of the shape letters.
"""

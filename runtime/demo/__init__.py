"""The bundled demo model: a trained DeepSeek-V3-shaped model in Hugging Face layout.

Why it exists: the whole path, from spec to streamed tokens, must run on one CPU machine without a download, with text
that reads and an expert load that is really uneven. The folder is data: the runtime loads it by path.
"""

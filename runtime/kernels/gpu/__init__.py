"""Operations by DeepSeek's kernels for NVIDIA GPUs, and what each of their calls must hold."""

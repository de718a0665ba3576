"""Operations by DeepSeek's kernels for NVIDIA GPUs."""

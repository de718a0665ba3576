"""Operations as compiled loops, for one thread of a CPU in BF16."""

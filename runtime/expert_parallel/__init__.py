"""Expert parallelism: the group of ranks, dispatch and combine of rows, overlap."""

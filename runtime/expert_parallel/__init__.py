"""Rows to experts and back: the group of ranks, dispatch and combine, overlap."""

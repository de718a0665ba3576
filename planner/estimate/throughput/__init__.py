"""How fast a phase runs: operations, the stages they form, how these overlap, and what a GPU or an engine adds."""

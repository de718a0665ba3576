"""The nodes of the cluster, and which of them can be used."""

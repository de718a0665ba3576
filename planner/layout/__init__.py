"""The cluster's nodes, and how a phase uses a unit's GPUs: experts, weights, KV and working memory."""

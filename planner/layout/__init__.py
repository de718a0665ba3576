"""The cluster's nodes, and how a phase uses the GPUs of a unit: experts, weights, KV and working memory."""

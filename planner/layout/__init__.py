"""The cluster's nodes, and one phase over its GPUs: experts, weights, KV and working memory."""

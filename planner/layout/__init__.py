"""One phase over its GPUs: experts, weights, KV and working memory."""

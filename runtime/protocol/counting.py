"""Counts that the gateway and its ranks share: KV in pages, attention in query-key pairs.

Source of the size of a page: FlashMLA (github.com/deepseek-ai/FlashMLA), "Paged kvcache with block size of 64".
"""

__all__ = ["PAGE_TOKENS", "attention_pairs", "num_pages", "round_up_to_page"]

PAGE_TOKENS = 64


def num_pages(num_tokens: int) -> int:
    """Return how many pages hold `num_tokens` tokens of one request."""
    return -(-num_tokens // PAGE_TOKENS)


def round_up_to_page(num_tokens: int) -> int:
    """Return `num_tokens` rounded up to whole pages."""
    return num_pages(num_tokens) * PAGE_TOKENS


def attention_pairs(begin: int, end: int) -> int:
    """Return the number of pairs that core attention forms for a request's tokens `begin` to `end` - 1.

    A token attends to itself and to all before it, so a whole prompt of n tokens forms n (n + 1) / 2.
    """
    return (end * (end + 1) - begin * (begin + 1)) // 2

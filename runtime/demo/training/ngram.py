"""An interpolated trigram over tokens: the yardstick the demo model must clearly beat.

Why it exists: "the loss went down" says little. A model with attention has to beat what counting three tokens gives,
on the same tokens, with counts from the same training stream.
It is no toy baseline on purpose: its weights depend on how often the context was seen (Jelinek-Mercer with buckets).

    p(w | u v) = a3 count(u v w)/count(u v) + a2 count(v w)/count(v) + a1 count(w)/total + a0/vocab

with one (a3, a2, a1, a0), summing to 1, per bucket floor(log2(1 + count(u v))), fitted by EM on training documents
left out of the counts (deleted interpolation; Jelinek and Mercer 1980, buckets after Chen and Goodman 1998).
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["Trigram"]

EM_ROUNDS = 30
TUNING_SHARE = 0.05


@dataclass(frozen=True)
class Counts:
    """The number of times each n-gram of one order occurs. N-grams are numbers in base `vocab`."""

    keys: np.ndarray
    values: np.ndarray

    @classmethod
    def from_keys(cls, keys: np.ndarray) -> "Counts":
        return cls(*np.unique(keys, return_counts=True))

    def __getitem__(self, keys: np.ndarray) -> np.ndarray:
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.values[at], 0)


class Trigram:
    """Counts of n-grams over a whole training stream, and the weights of the orders.

    The weights were fitted on the last `TUNING_SHARE` of the stream before that part was counted.
    """

    def __init__(self, stream: np.ndarray, vocab: int) -> None:
        self.vocab = vocab
        cut = int(len(stream) * (1 - TUNING_SHARE))
        self.count(stream[:cut])
        self.fit(stream[cut:])
        self.count(stream)

    def bits(self, document: np.ndarray) -> float:
        """Return the bits that the trigram needs to code `document` after its first token."""
        parts, bucket = self.parts(document)
        return float(-np.log2((self.weights[bucket] * parts).sum(1)).sum())

    def count(self, stream: np.ndarray) -> None:
        """Replace all counts by those of `stream`."""
        one, two, three = self.grams(stream)
        self.one, self.two, self.three, self.total = (
            Counts.from_keys(one),
            Counts.from_keys(two),
            Counts.from_keys(three),
            len(stream),
        )

    def fit(self, stream: np.ndarray) -> None:
        """Fit each bucket's four weights on `stream` by expectation maximisation."""
        parts, bucket = self.parts(stream)
        num_buckets = 1 + int(np.log2(1 + self.total))
        self.weights = np.full((num_buckets, 4), 0.25)
        for _ in range(EM_ROUNDS):
            share = self.weights[bucket] * parts
            share /= share.sum(1, keepdims=True)
            for b in np.unique(bucket):
                self.weights[b] = share[bucket == b].mean(0)

    def parts(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each predicted token's probability by the four orders, and its context's bucket.

        They are ([predicted tokens, 4], [predicted tokens]). The orders are trigram, bigram, unigram and a uniform
        guess. The bucket is the power of two of the number of times that the two tokens before were seen.
        """
        first = np.concatenate(
            [tokens[:1], tokens]
        )  # the first prediction has one token of context: it stands in twice
        u, v, w = (first[i : len(first) - 2 + i].astype(np.int64) for i in range(3))
        context = self.two[u * self.vocab + v]
        estimates = [
            self.three[(u * self.vocab + v) * self.vocab + w] / np.maximum(context, 1),
            self.two[v * self.vocab + w] / np.maximum(self.one[v], 1),
            self.one[w] / self.total,
            np.full(len(w), 1 / self.vocab),
        ]
        return np.stack(estimates, axis=1), np.log2(1 + context).astype(np.int64)

    def grams(self, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (unigrams, bigrams, trigrams) of the stream, each n-gram as a number in base `vocab`."""
        s = stream.astype(np.int64)
        two = s[:-1] * self.vocab + s[1:]
        return s, two, two[:-1] * self.vocab + s[2:]

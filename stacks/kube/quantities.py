"""Kubernetes' quantities as exact numbers and back: `500m` is 0.5, `2Gi` is 2147483648.

Reading them is the Kubernetes client's, which knows every suffix; it gives no types, so one file here does.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

__all__ = ["Amounts", "amount_text", "amounts"]

Amounts = Mapping[str, Decimal]  # resource -> how much of it

BINARY = {"Ti": 2**40, "Gi": 2**30, "Mi": 2**20, "Ki": 2**10}


def amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """Read `{"cpu": "500m", "nvidia.com/gpu": "8"}`; nothing is an empty mapping."""
    return {name: Decimal(parse_quantity(value)) for name, value in (quantities or {}).items()}  # type: ignore[no-untyped-call]


def amount_text(amount: Decimal) -> str:
    """Write a number as people write quantities: `2Gi`, `8`, `0.5`; bytes that are no round number stay bytes."""
    for suffix, size in BINARY.items():
        if amount and amount % size == 0:
            return f"{amount // size}{suffix}"
    return f"{amount.normalize():f}"

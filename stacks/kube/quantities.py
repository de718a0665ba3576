"""Kubernetes' quantities as exact numbers and back: `500m` is 0.5, `2Gi` is 2147483648.

The Kubernetes client reads them, because it knows every suffix. It gives no types, so this one file does.
"""

from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from stacks.kube.errors import ProviderError

__all__ = ["Amounts", "amount_text", "amounts", "is_quantity"]

Amounts = Mapping[str, Decimal]  # resource -> how much of it

LARGEST, FINEST = Decimal(2**63), Decimal("1e-9")  # kubernetes 1.36 apimachinery/pkg/api/resource/quantity.go
BINARY = {"Ti": 2**40, "Gi": 2**30, "Mi": 2**20, "Ki": 2**10}


def amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """Return resource -> exact number, from quantities such as `{"cpu": "500m", "nvidia.com/gpu": "8"}`.

    Empty for None. Raises ProviderError if a value is no quantity.
    """
    return {name: _amount(name, value) for name, value in (quantities or {}).items()}


def is_quantity(value: Any) -> bool:
    """Return whether Kubernetes accepts `value` as a quantity: finite, at most 2^63, and 0 or at least a billionth."""
    return _parse(value) is not None


def amount_text(amount: Decimal) -> str:
    """Return a number as a quantity, such as `2Gi`, `8` or `0.5`.

    A suffix is used only if the number is a multiple of it.
    """
    for suffix, size in BINARY.items():
        if amount and amount % size == 0:
            return f"{amount // size}{suffix}"
    return f"{amount.normalize():f}"


def _amount(name: str, value: Any) -> Decimal:
    amount = _parse(value)
    if amount is None:
        raise ProviderError(f"{name} is {str(value)[:60]!r}, which is no quantity; write it as 500m, 8 or 2Gi")
    return amount


def _parse(value: Any) -> Decimal | None:
    is_number = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    return _parse_cached(value) if is_number else None


@lru_cache(maxsize=4096)  # a large cluster's pods ask for few different amounts
def _parse_cached(value: str | float) -> Decimal | None:
    try:
        amount = Decimal(parse_quantity(value))  # type: ignore[no-untyped-call]
        is_in_range = amount.is_finite() and (not amount or FINEST <= abs(amount) <= LARGEST)
    except (ValueError, ArithmeticError):
        return None
    return amount if is_in_range else None

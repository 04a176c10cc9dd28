"""Amounts as Kubernetes writes them: `2Gi`, `64M`, `500m`. Pure.

Source: apimachinery's pkg/api/resource (Quantity). Amounts beyond what can be meant are refused, not computed.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Final

_QUANTITY: Final = re.compile(
    r"\+?([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?[0-9]{1,2}))?"
)
_BINARY: Final = {name: Decimal(1024) ** (place + 1) for place, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
_DECIMAL: Final = {name: Decimal(10) ** power for name, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)}
_LARGEST: Final = 1 << 64


def amount(value: object) -> int | None:
    """The whole number of bytes (or of CPUs) that are enough for it; None for what is no such amount, or negative."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value < _LARGEST else None
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    number, binary, decimal, exponent = match.groups()
    factor = _BINARY[binary] if binary else _DECIMAL[decimal] if decimal else Decimal(10) ** int(exponent or 0)
    return int((Decimal(number) * factor).to_integral_value(ROUND_CEILING))

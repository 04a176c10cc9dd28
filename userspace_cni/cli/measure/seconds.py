"""Numbers of seconds as options have them."""

from __future__ import annotations

import math
from typing import Any

import click


class SecondsRange(click.FloatRange):
    """A range of numbers that also refuses "nan", which no comparison excludes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if isinstance(number, float) and math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number

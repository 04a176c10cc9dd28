"""What a picture consists of: shapes at places, in groups that have a name. Pure, and without a word about how it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from userspace_cni.diagnosis.node_map import MapPort, PortState

Facts = tuple[tuple[str, str], ...]
"""Names and values, as shown of a thing that is pointed at."""


@dataclass(frozen=True)
class Rectangle:
    """`look`: the class that says how it is drawn."""

    x: float
    y: float
    width: float
    height: float
    look: str
    radius: float = 4


@dataclass(frozen=True)
class Wire:
    """A line through these points."""

    points: tuple[tuple[float, float], ...]
    look: str


@dataclass(frozen=True)
class Label:
    """A line of text that has been made to fit. `y` is its base line, `x` where its start, middle or end is."""

    x: float
    y: float
    text: str
    size: float
    look: str = ""
    bold: bool = False
    anchor: Literal["start", "middle", "end"] = "start"


@dataclass(frozen=True)
class Symbol:
    """The sign of a state, around its middle."""

    x: float
    y: float
    state: PortState
    size: float = 5


Shape = Rectangle | Wire | Label | Symbol


@dataclass(frozen=True)
class Item:
    """Shapes that belong together. `id`: ours, never a text from outside. `port`: whose they are, `facts` what is told of it."""

    id: str
    look: str
    shapes: tuple[Shape, ...]
    port: MapPort | None = None
    title: str = ""
    facts: Facts = ()


@dataclass(frozen=True)
class Drawing:
    """A whole picture. `ways`: of the item of each port the ids of what lies between it and the outside, itself included."""

    width: float
    height: float
    title: str
    items: tuple[Item, ...]
    ways: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

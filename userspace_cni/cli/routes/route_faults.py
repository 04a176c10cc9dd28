"""What is wrong in a file of routes, each with its line, as compilers tell it.

The lines come from the text as YAML, of which JSON is a part. Where they cannot be found the number of the entry or object has to
suffice: nothing here may fail.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import click
import yaml

from userspace_cni.cli import view
from userspace_cni.routes.route_files import Fault, Faults

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLACE: Final = re.compile(r"'?((?:spec|metadata)(?:\.\w+|\[\d+\])*)")
"""How a problem of a Route begins that names its field."""
_NULL: Final = "tag:yaml.org,2002:null"


def tell(faults: Faults, name: str, text: str) -> None:
    """A line on stdout for each fault of the file `name`, as `routes.yaml:3: entry 2: …`, and one for those that are left out."""
    for line, each in locate(faults, text):
        click.echo(view.plain(f"{name}:{line}: {each}" if line else f"{name}: {each}"))
    if faults.more:
        click.echo(view.plain(f"{name}: {faults.more} more"))


def describe(faults: Faults, text: str) -> dict[str, Any]:
    found = [{"line": line or None, "text": str(each)} for line, each in locate(faults, text)]
    return {"faults": found, "more_faults": faults.more}


def locate(faults: Faults, text: str) -> list[tuple[int, Fault]]:
    """The faults with their lines, from 1; 0 where the line is not known."""
    things = _things(text)
    return [(_line(each, things), each) for each in faults.first]


def _line(fault: Fault, things: Sequence[yaml.Node]) -> int:
    if fault.number > len(things):
        return 0
    node = things[fault.number - 1]
    place = _PLACE.match(fault.text)
    for step in re.findall(r"\w+", place[1]) if place else ():
        below = _below(node, step)
        if below is None:
            break
        node = below
    return int(node.start_mark.line) + 1


def _below(node: yaml.Node, step: str) -> yaml.Node | None:
    """The value of a key, or an item of a list."""
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if isinstance(key, yaml.ScalarNode) and key.value == step), None)
    if isinstance(node, yaml.SequenceNode) and step.isdigit() and int(step) < len(node.value):
        item: yaml.Node = node.value[int(step)]
        return item
    return None


def _things(text: str) -> list[yaml.Node]:
    """The objects or entries in the text, in the order in which `routes.route_files` counts them."""
    try:
        documents = [each for each in yaml.compose_all(text, Loader=_LOADER) if each is not None and each.tag != _NULL]
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    if len(documents) == 1 and isinstance(documents[0], yaml.MappingNode) and len(documents[0].value) == 1:
        [(_, documents[0])] = documents[0].value
    if len(documents) == 1 and isinstance(documents[0], yaml.SequenceNode):
        documents = documents[0].value
    return [item for each in documents for item in _items(each)]


def _items(node: yaml.Node) -> list[yaml.Node]:
    """What is in a List of objects; else the node itself."""
    kind, items = _below(node, "kind"), _below(node, "items")
    if isinstance(kind, yaml.ScalarNode) and kind.value.endswith("List") and isinstance(items, yaml.SequenceNode):
        return list(items.value)
    return [node]

"""Fields of an object's `spec`: those that are known, and those of kubeovn.io's that are not built. Pure.

An object with a field that has no effect here is refused, by the field's name: neither a typo nor a request for something that
is not built may be ignored silently. A field of the latter kind with an empty or false value is accepted, so that manifests
need not be edited.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig, quote
from userspace_cni.base.misspelt import meant_or_known

NOTHING: Final[tuple[Any, ...]] = (None, False, "", 0, [], {})
"""Values that ask for nothing."""


def known_fields(spec: object, known: Collection[str], not_built: Mapping[str, Collection[Any]], where: str) -> Mapping[str, Any]:
    """Return the `spec` if each of its fields is known. Raises InvalidConfig naming `where` and the field.

    `not_built`: fields of kubeovn.io's, each with the values beside `NOTHING` that say what is so anyway.
    """
    if not isinstance(spec, dict):
        raise InvalidConfig(f"{where} is {quote(spec)}", "it must be an object")
    for name, value in spec.items():
        if name in not_built:
            if value not in NOTHING and value not in not_built[name]:
                said = quote(value)
                raise InvalidConfig(
                    f"{where}: '{name}' is {said}, which is not built", "take the field out: docs/node-network.md"
                )
        elif name not in known:
            raise InvalidConfig(f"{where}: unknown field '{name}'", meant_or_known(name, sorted(known), "fields"))
    return spec

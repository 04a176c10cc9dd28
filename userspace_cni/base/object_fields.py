"""Fields of an object's `spec`: those that are known, and those of kubeovn.io's that are not built. Pure.

A field that has no effect here refuses its object by name: neither a typing error nor a spec for what is not built may be
dropped in silence. A field of the latter that only says what is so anyway is let pass, so that a manifest need not be cut.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig, quoted

NOTHING: Final[tuple[Any, ...]] = (None, False, "", 0, [], {})
"""Values that ask for nothing."""


def known_fields(spec: object, known: Collection[str], not_built: Mapping[str, Collection[Any]], where: str) -> Mapping[str, Any]:
    """Return the `spec` if each of its fields is known. Raises InvalidConfig naming `where` and the field.

    `not_built`: fields of kubeovn.io's, each with the values beside `NOTHING` that say what is so anyway.
    """
    if not isinstance(spec, dict):
        raise InvalidConfig(f"{where} is {quoted(spec)}", "it must be an object")
    for name, value in spec.items():
        if name in not_built:
            if value not in NOTHING and value not in not_built[name]:
                said = quoted(value)
                raise InvalidConfig(
                    f"{where}: '{name}' is {said}, which is not built", "take the field out: docs/node-network.md"
                )
        elif name not in known:
            raise InvalidConfig(f"{where}: unknown field '{name}'", f"fields are {', '.join(sorted(known))}")
    return spec

"""What the plugin itself says of a network's configuration, without a node: ADD's errors and warnings.

The plugin's own readers are used, so that a lint and ADD never differ. What depends on the node and its settings is not known
here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from userspace_cni.base.errors import Undecodable, UserspaceError
from userspace_cni.base.findings import Finding
from userspace_cni.cni.keys import Misspelt, fold_case
from userspace_cni.cni.options import read_options
from userspace_cni.cni.request import Environment, Request, read_network
from userspace_cni.cni.subnet_keys import require_possible
from userspace_cni.consumers import CONSUMERS

_ADD: Final = Environment("ADD", "0", "", "net1", {}, (), netns_override=False, variables={})
"""The call for which a configuration is read."""
_SLIPS_MAX: Final = 50
"""Misspelt keys of one configuration that are reported at most."""
_KEY: Final = re.compile(r"key '(.*?)' (?:is|holds|has|asks)\b|.*\((host\.vhost\.mode) is not", re.DOTALL)
"""How messages of the plugin name a key."""


def remarks_on(configuration: Mapping[str, Any]) -> list[Finding]:
    """What the plugin says of a configuration as a runtime hands it over: each misspelt key, the first other error, the warnings.

    They are named `refused` (with the error's code) or `ignored`. `path` is the key that the message names; there is no subject.
    A misspelt key is reported and then read as the right key, so that later remarks hold after it is corrected.
    """
    found: list[Finding] = []
    warnings: list[str] = []
    try:
        written = json.dumps(configuration)
    except (TypeError, ValueError) as error:
        return [_refusal(Undecodable(f"the configuration cannot be written as JSON: {error}", "it must be JSON"))]
    config = json.loads(written)
    for _ in range(_SLIPS_MAX):
        warnings.clear()
        stdin = json.dumps(config).encode()
        try:
            network = read_network(stdin, "ADD")
            require_possible(network)
            read_options(Request(_ADD, network, stdin), CONSUMERS, warnings.append, warnings.append)
        except Misspelt as error:
            found.append(_refusal(error))
            if _correct(config, error):
                continue
        except UserspaceError as error:
            found.append(_refusal(error))
        break
    return found + [Finding("ignored", "warning", "", text, path=_key_of(text)) for text in warnings]


def _refusal(error: UserspaceError) -> Finding:
    remedy = error.details or "correct the configuration"
    return Finding("refused", "error", "", error.message, remedy, _key_of(error.message), code=error.code)


def _key_of(message: str) -> str:
    found = _KEY.match(message)
    return next((each for each in found.groups() if each), "") if found else ""


def _correct(config: dict[str, Any], error: Misspelt) -> bool:
    """Give a misspelt key the right name; False when it is not where the error says."""
    holder = _object(config, error.place)
    if error.key not in holder:
        return False
    value = holder.pop(error.key)
    place, _, name = error.meant.rpartition(".")
    target = _object(config, place)
    if not any(fold_case(key) == name.lower() for key in target):
        target[name] = value
    return True


def _object(config: dict[str, Any], place: str) -> dict[str, Any]:
    """The object at a place, made where it is missing; a new one, left out of it, where another value is in the way."""
    held = config
    for name in place.split(".") if place else []:
        key = next((key for key in held if fold_case(key) == name.lower()), name)
        below = held.setdefault(key, {})
        if not isinstance(below, dict):
            return {}
        held = below
    return held

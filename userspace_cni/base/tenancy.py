"""The administrator's rules: which bridges, VLANs, mirrors and directories the networks of a namespace may use here. Pure.

The author of a NetworkAttachmentDefinition or a pod is a user of a namespace, a tenant; the administrator's settings say what
tenants may name. Only an ADD with a pod of a cluster is bound: without a pod the configuration is the administrator's own.
CHECK, DEL and GC of an existing attachment must never ask this module: later rules do not hold for it.

A rule names namespaces and, by kind, what they may use. If rules for a namespace name a kind, it may use of that kind all that
they name together, and nothing else; if no rule does, the kind is not bound, but for what a namespace has not without a rule:
outputs of mirrors, which hear what others say; bridges of provider networks, which lead to the node's own wire; OVN's
integration bridge as a bridge, of OVN's logical switches any but the node's own, and on all of them ports without port security,
which can send from any address. An unknown key, an empty list of namespaces and a pattern that no name can match are errors: each
would allow what the rule was written to forbid.

To add a kind: a field of `Rule`, its reader in `READERS`, its name in `_KINDS`, and a function that decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from string import ascii_letters, ascii_lowercase, digits
from typing import Any, Final

from userspace_cni.base.errors import BridgeRefused, InvalidConfig, LogicalPortRefused, MirrorRefused
from userspace_cni.base.logical_ports import NODE_SWITCH
from userspace_cni.base.mirrors import NAME_CHARACTERS, NAME_FIRST, NAME_MAX
from userspace_cni.base.misspelt import meant_or_known
from userspace_cni.base.vlans import BRIDGE_MAX, Vlan, list_carried_vlans, vlan_ranges

_PART: Final = re.compile(r"\[!?[^\]]+\]|.", re.DOTALL)
_DIRECTORIES: Final = re.compile(r"(/+(?!\.\.?(/|\Z))[^/\0]+)+/*")
_KINDS: Final = ("bridges", "directories", "logical_switches", "mirrors", "mirror_outputs", "without_port_security")
_EVERY: Final = "*"
_SHOWN_MAX: Final = 5


@dataclass(frozen=True)
class _Names:
    """The names that a pattern may match: their characters, those that can be first and last, and the greatest length."""

    characters: str
    first: str
    last: str
    longest: int

    def has(self, pattern: str) -> bool:
        """Whether the glob pattern can match one of the names."""
        parts = _PART.findall(pattern)
        singles = [part for part in parts if part != "*"]
        if not parts or len(singles) > self.longest:
            return False
        places = [*((part, self.characters) for part in singles), (parts[0], self.first), (parts[-1], self.last)]
        return all(any(fnmatchcase(character, part) for character in characters) for part, characters in places)


_NAMESPACES: Final = _Names(f"{ascii_lowercase}{digits}-", ascii_lowercase + digits, ascii_lowercase + digits, 63)
"""RFC 1123 labels."""
_BRIDGES: Final = _Names(f"{ascii_letters}{digits}_.-", f"{ascii_letters}{digits}_", f"{ascii_letters}{digits}_.-", BRIDGE_MAX)

_MIRRORS: Final = _Names(NAME_CHARACTERS, NAME_FIRST, NAME_CHARACTERS, NAME_MAX)
_SWITCHES: Final = _Names(f"{ascii_letters}{digits}_.:/-", f"{ascii_letters}{digits}_", f"{ascii_letters}{digits}_.:/-", 253)


@dataclass(frozen=True)
class Rule:
    """One `[[rule]]` of the settings, the `number`th (from 1). A kind that is None is not named; () allows nothing of it.

    All but `vlans` and `directories` are glob patterns. `vlans`: what ports on these bridges may carry, None for all VLANs. Of
    `mirrors` a port may be a source, of `mirror_outputs` the output. `logical_switches` are OVN's, NODE_SWITCH among them; on
    those of `without_port_security` a port may send from any address, if it may be there.
    """

    number: int
    namespaces: tuple[str, ...]
    bridges: tuple[str, ...] | None = None
    vlans: tuple[range, ...] | None = None
    directories: tuple[str, ...] | None = None
    mirrors: tuple[str, ...] | None = None
    mirror_outputs: tuple[str, ...] | None = None
    logical_switches: tuple[str, ...] | None = None
    without_port_security: tuple[str, ...] | None = None

    def is_for(self, namespace: str) -> bool:
        return _matches(namespace, self.namespaces)

    def allows(self, vlans: Iterable[int] | None) -> bool:
        """Whether a port on the rule's bridges may carry these VLANs, None for all."""
        if self.vlans is None:
            return True
        return vlans is not None and all(any(vlan in allowed for allowed in self.vlans) for vlan in vlans)


@dataclass(frozen=True)
class Bounds:
    """The directories below which a namespace's `sharedDir` must lie, and a pod's hostPath that is to be made; not in `never`.

    `said_by`: which setting says so.
    """

    namespace: str
    directories: tuple[str, ...]
    said_by: str
    never: tuple[str, ...] = ()


def read_rules(raw: object, where: str) -> tuple[Rule, ...]:
    """Read the tables `[[rule]]` of the file `where`. Raises InvalidConfig naming file, the rule's number, key and value."""
    if not isinstance(raw, list) or not all(isinstance(table, dict) for table in raw):
        raise InvalidConfig(f"{where}: 'rule' is {raw!r}", "write rules as tables, each below a line [[rule]]")
    return tuple(_read_rule(number, table, f"{where}, [[rule]] number {number}") for number, table in enumerate(raw, 1))


def require_port(rules: Iterable[Rule], namespace: str, bridge: str, vlan: Vlan) -> None:
    """Raise BridgeRefused unless a pod of the namespace may have such a port on the bridge; "" is no namespace and not bound."""
    ruling = [rule for rule in rules if namespace and rule.bridges is not None and rule.is_for(namespace)]
    naming = [rule for rule in ruling if _matches(bridge, rule.bridges or ())]
    refused = f"which pods of namespace {namespace!r} cannot have"
    if ruling and not naming:
        raise BridgeRefused(
            f"key 'host.bridge.bridgeName' is {bridge!r}, {refused}",
            _allowing((rule, ", ".join(rule.bridges or ())) for rule in ruling),
        )
    vlans = list_carried_vlans(vlan)
    if not ruling or any(rule.allows(vlans) for rule in naming):
        return
    allowing = _allowing((rule, ", ".join(map(_span, rule.vlans or ()))) for rule in naming)
    if vlans is None:
        raise BridgeRefused(
            f"the port would carry all VLANs of bridge {bridge!r}, {refused}",
            f"give the network a 'host.bridge.vlanId', or 'host.bridge.trunks' with the VLANs that it needs; {allowing}",
        )
    raise BridgeRefused(
        f"the port would carry VLAN {_shown(sorted(vlans))} of bridge {bridge!r}, {refused}",
        f"{allowing}; one rule must allow all VLANs of a port (0 are frames without a tag)",
    )


def require_opened(rules: Iterable[Rule], namespace: str, bridge: str) -> None:
    """Raise BridgeRefused unless a rule opens this bridge of a provider network to the namespace.

    The namespace "" is none, and not bound.
    """
    opens = (rule for rule in rules if rule.bridges is not None and rule.is_for(namespace) and _matches(bridge, rule.bridges))
    if namespace and next(opens, None) is None:
        raise BridgeRefused(
            f"key 'host.bridge.bridgeName' is {bridge!r}, which pods of namespace {namespace!r} cannot have",
            "it is a provider network's, and leads to the node's own wire: only a setting [[rule]] with 'bridges' opens it",
        )


def require_logical_switch(rules: Iterable[Rule], namespace: str, switch: str) -> None:
    """Raise LogicalPortRefused unless a pod of the namespace may have a port of this switch of OVN's.

    `switch`: "" for one that is not known here, where the pod names a logical port that is not its namespace's. The namespace ""
    is none, and not bound.
    """
    ruling = [rule for rule in rules if namespace and rule.logical_switches is not None and rule.is_for(namespace)]
    named = [each for rule in ruling for each in rule.logical_switches or ()]
    allowed = (_matches(switch, named) if ruling else switch == NODE_SWITCH) if switch else _EVERY in named
    if not namespace or allowed:
        return
    what = f"key 'ovn.switch' is {switch!r}" if switch else "the logical port is not named after a pod of its own namespace alone"
    raise LogicalPortRefused(
        f"{what}, which pods of namespace {namespace!r} cannot have",
        _allowing((rule, ", ".join(rule.logical_switches or ())) for rule in ruling)
        or f"the node's own switch is {NODE_SWITCH!r}: only a setting [[rule]] with 'logical_switches' opens others",
    )


def require_without_security(rules: Iterable[Rule], namespace: str, switch: str, asked: str) -> None:
    """Raise LogicalPortRefused unless a pod of the namespace may have a port without port security on this switch of OVN's.

    `asked`: the key by which its network asks for one, with its value. The namespace "" is none, and not bound.
    """
    ruling = [rule for rule in rules if namespace and rule.without_port_security is not None and rule.is_for(namespace)]
    if not namespace or any(_matches(switch, rule.without_port_security or ()) for rule in ruling):
        return
    raise LogicalPortRefused(
        f"key {asked}, so that the port could send from any address; pods of namespace {namespace!r} cannot have such a port of "
        f"logical switch {switch!r}",
        _allowing((rule, ", ".join(rule.without_port_security or ())) for rule in ruling)
        or "remove the key; only a setting [[rule]] with 'without_port_security' allows it",
    )


def require_bridge_of_ovn(rules: Iterable[Rule], namespace: str, bridge: str) -> None:
    """Raise BridgeRefused unless a rule opens OVN's integration bridge to ports of the namespace that are no logical ports."""
    opens = (rule for rule in rules if rule.bridges is not None and rule.is_for(namespace) and _matches(bridge, rule.bridges))
    if namespace and next(opens, None) is None:
        raise BridgeRefused(
            f"key 'host.bridge.bridgeName' is {bridge!r}, which is OVN's and forwards nothing of ports that OVN does not know",
            "write 'ovn': {} for a logical port; only a setting [[rule]] with 'bridges' opens the bridge to others",
        )


def require_mirrors(rules: Iterable[Rule], namespace: str, mirrors: Iterable[str], outputs: Iterable[str]) -> None:
    """Raise MirrorRefused unless a pod of the namespace may be a source of these mirrors, and the output of those.

    The namespace "" is none, and not bound.
    """
    ruling = [rule for rule in rules if namespace and rule.is_for(namespace)]
    sources = [rule for rule in ruling if rule.mirrors is not None]
    for name in mirrors:
        if sources and not any(_matches(name, rule.mirrors or ()) for rule in sources):
            raise MirrorRefused(
                f"the port would be a source of mirror {name!r}, which pods of namespace {namespace!r} cannot be",
                _allowing((rule, ", ".join(rule.mirrors or ())) for rule in sources),
            )
    naming = [rule for rule in ruling if rule.mirror_outputs is not None]
    for output in outputs if namespace else ():
        if not any(_matches(output, rule.mirror_outputs or ()) for rule in naming):
            allowing = _allowing((rule, ", ".join(rule.mirror_outputs or ())) for rule in naming)
            raise MirrorRefused(
                f"key 'mirrorOutput' is {output!r}, and pods of namespace {namespace!r} cannot be the output of that mirror",
                allowing or "an output receives the frames of others: only a setting [[rule]] with 'mirror_outputs' allows it",
            )


def bounds_of(rules: Iterable[Rule], namespace: str, usual: tuple[str, ...]) -> Bounds | None:
    """Where `sharedDir` must lie for a pod of the namespace: by the rules, else in `usual`. None (anywhere) for ""."""
    if not namespace:
        return None
    ruling = [rule for rule in rules if rule.directories is not None and rule.is_for(namespace)]
    if not ruling:
        return Bounds(namespace, usual, "setting shared_dirs")
    directories = dict.fromkeys(directory for rule in ruling for directory in rule.directories or ())
    numbers = " and ".join(str(rule.number) for rule in ruling)
    return Bounds(namespace, tuple(directories), f"setting [[rule]] number {numbers}, in place of shared_dirs")


def _read_rule(number: int, table: Mapping[str, Any], where: str) -> Rule:
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in READERS:
            raise InvalidConfig(f"{where}: unknown key '{key}' = {value!r}", meant_or_known(key, READERS))
        if not isinstance(value, list):
            raise InvalidConfig(f"{where}: '{key}' is {value!r}", "it must be a list")
        values[key] = READERS[key](value, f"{where}: '{key}'")
    if not values.get("namespaces"):
        raise InvalidConfig(f"{where}: 'namespaces' is missing or empty", '["*"] is every namespace')
    if "vlans" in values and not (values["vlans"] and values.get("bridges")):
        raise InvalidConfig(
            f"{where}: 'vlans' is {table['vlans']!r}, 'bridges' is {table.get('bridges')!r}",
            "'vlans' are of ports on 'bridges' of the same rule, and neither can be empty; without 'vlans' they may carry all",
        )
    if not values.keys() & set(_KINDS):
        raise InvalidConfig(f"{where}: it names no {' and no '.join(_KINDS)}", "it would bind no pod")
    return Rule(number, **values)


def _names(is_one: Callable[[str], object], what: str) -> Callable[[list[Any], str], tuple[str, ...]]:
    def read(items: list[Any], where: str) -> tuple[str, ...]:
        for item in items:
            if not isinstance(item, str) or not is_one(item):
                raise InvalidConfig(f"{where} holds {item!r}", f"it must be {what}")
        return tuple(items)

    return read


def _read_vlans(items: list[Any], where: str) -> tuple[range, ...]:
    return tuple(each for item in items for each in vlan_ranges(item, where))


READERS: Final[Mapping[str, Callable[[list[Any], str], object]]] = {
    "namespaces": _names(_NAMESPACES.has, "the name of a namespace, in which * ? and [a-z] match as in a shell"),
    "bridges": _names(_BRIDGES.has, "the name of a bridge, in which * ? and [a-z] match as in a shell"),
    "vlans": _read_vlans,
    "mirrors": _names(_MIRRORS.has, "the name of a mirror, in which * ? and [a-z] match as in a shell"),
    "mirror_outputs": _names(_MIRRORS.has, "the name of a mirror, in which * ? and [a-z] match as in a shell"),
    "logical_switches": _names(_SWITCHES.has, "the name of a logical switch, in which * ? and [a-z] match as in a shell"),
    "without_port_security": _names(_SWITCHES.has, "the name of a logical switch, in which * ? and [a-z] match as in a shell"),
    "directories": _names(_DIRECTORIES.fullmatch, "the absolute path of a directory, without '..'"),
}


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _allowing(rules: Iterable[tuple[Rule, str]]) -> str:
    return "; ".join(f"setting [[rule]] number {rule.number} allows {what or 'none'}" for rule, what in rules)


def _span(vlans: range) -> str:
    return str(vlans.start) if len(vlans) == 1 else f"{vlans.start}-{vlans.stop - 1}"


def _shown(vlans: list[int]) -> str:
    text = ", ".join(map(str, vlans[:_SHOWN_MAX]))
    return text if len(vlans) <= _SHOWN_MAX else f"{text} and {len(vlans) - _SHOWN_MAX} more"

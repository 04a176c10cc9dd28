"""Reads the gateways' parts back from their nftables table, as `Translation.gateways` has them. Pure.

Where the table's record is lost, only the table tells what is translated for a gateway whose spec is not known now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Any, Final

REST: Final = "others"
"""Stands for the port of subnets that are in the table's sets alone: what goes there keeps its address."""
_MASQUERADES: Final = "masquerade "
_CLAMPS: Final = "MSS "


def parts_of(things: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The parts by which this table was made, by port; `things` as `nft_program.list_table` gives them.

    What another program has put into the table is left out.
    """
    parts: dict[str, dict[str, Any]] = {}
    known: set[str] = set()
    for rule in (each["rule"] for each in things if "rule" in each):
        port, _, what = str(rule.get("comment", "")).rpartition(": ")
        if not port or not what.startswith((_MASQUERADES, _CLAMPS)):
            continue
        part = parts.setdefault(port, _part(port))
        part["masquerade" if what.startswith(_MASQUERADES) else "clamp_mss"] = True
        own, kept = _matched(rule.get("expr", ()))
        _add(part["subnets"], own)
        _add(part["kept"], kept)
        known.update(own)
    rest = [each for thing in things if "set" in thing for each in _networks(thing["set"].get("elem")) if each not in known]
    found = [parts[port] for port in sorted(parts)]
    return (*found, _part(REST) | {"subnets": rest}) if rest else tuple(found)


def _part(port: str) -> dict[str, Any]:
    return {"port": port, "subnets": [], "masquerade": False, "kept": [], "clamp_mss": False}


def _add(to: list[str], networks: Iterable[str]) -> None:
    to += [each for each in networks if each not in to]


def _matched(expressions: Iterable[Any]) -> tuple[list[str], list[str]]:
    """The networks that a rule is for, and those that it leaves out."""
    own: list[str] = []
    kept: list[str] = []
    for match in (each["match"] for each in expressions if isinstance(each, dict) and "match" in each):
        left = match.get("left")
        if isinstance(left, dict) and "payload" in left and left["payload"].get("field") in ("saddr", "daddr"):
            (kept if match.get("op") == "!=" else own).extend(_networks(match.get("right")))
    return own, kept


def _networks(value: Any) -> Iterator[str]:
    """The networks of a value of nft's: one, or a set of them; none of the name of a set."""
    if isinstance(value, dict) and "set" in value:
        value = value["set"]
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict) and "prefix" in each:
            yield str(ip_network(f"{each['prefix']['addr']}/{each['prefix']['len']}"))
        elif isinstance(each, str) and not each.startswith("@"):
            yield str(ip_network(each))

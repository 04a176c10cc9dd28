"""Of objects that others write (a network's configuration, an IPAM plugin's result, a row's map): the keys that are known. Pure.

What stands under any other key is left out, whatever it is called: an IPAM plugin of a third party may have its password under
a name that no pattern knows.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final

from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import STEP_TYPES
from userspace_cni.cli.support.redaction import REDACTED, Redactor, is_credential
from userspace_cni.cni.network_keys import TABLE
from userspace_cni.node.support_facts import LEFT_OUT

_DEEPEST: Final = 40
_OF_NETWORKS: Final = """
    args capabilities cni cniVersion cniVersions disableCheck domain exclude gateway gw dst host-local interface interfaces ip ips
    ipam mac mtu name nameservers network_name options plugins prevResult priority range rangeEnd rangeStart range_end range_start
    ranges routes runtimeConfig sandbox scope search server serverIP socketPath subnet subnets table type address addresses advmss
    version vlanId whereabouts bandwidth ingressRate ingressBurst egressRate egressBurst CNIDeviceInfoFile mac
"""
_OF_IPAM: Final = """
    type subnet subnets range ranges rangeStart rangeEnd range_start range_end gateway routes dst gw address addresses dataDir
    resolvConf exclude network_name name mtu advmss priority table scope dns nameservers domain search options ipRanges
"""
"""What an `ipam` may have, of which plugins of third parties read what they like."""
_OF_PODS: Final = "containerId ifName config ipResult iftype netType memif vhost mode socketfile bridge bridgeName dns"
_OF_RECORDS: Final = """
    attachments complete holders key kind made schema shared told_in undone firmware_version step value values things store
    record records
    owner owner-kind container-id network ifname run spec boot-id netns netns-inode pod-namespace pod-name pod-uid vm-name
    ifindex former-mtu former-offloads moves-addresses attached-mac iface-id iface-id-ver iface-status ovn-installed purpose pid
    CNI_COMMAND CNI_CONTAINERID CNI_NETNS CNI_IFNAME CNI_PATH
"""
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|"(?:[^"\\]|\\.?)*\Z', re.DOTALL)
_NOT_JSON: Final = re.compile(r"[^\s{}\[\]:,]+")
_NUMBER: Final = re.compile(r"-?[0-9][0-9.eE+-]*")
_RECORD_KEY: Final = re.compile(r"[+=]?[\w.-]+@[\w.-]+")
"""The key of a record, by which lists of holders have it."""
_HEADER: Final = re.compile(r"(?i)^(?:POST|GET|CNI-(?:CONTAINERID|NETNS|IFNAME|PATH|COMMAND)|Called-|Content-Length|Userspace-)")


@cache
def _known() -> frozenset[str]:
    """All keys: of records, of the steps in them with all that these consist of, and of networks."""
    found = {*_OF_NETWORKS.split(), *_OF_PODS.split(), *_OF_RECORDS.split(), *(key.name for key in TABLE)}
    left: list[Any] = [Record, *STEP_TYPES.values()]
    seen: set[Any] = set()
    while left:
        kind = left.pop()
        if kind in seen or not is_dataclass(kind):
            continue
        seen.add(kind)
        found |= {each.name for each in fields(kind)}
        left += [each for item in fields(kind) for each in _named_in(str(item.type), kind)]
    return frozenset(found)


def _named_in(annotation: str, kind: Any) -> list[Any]:
    """The dataclasses that an annotation names, where the class was written."""
    import sys

    names = vars(sys.modules[kind.__module__])
    found = [names.get(word) for word in re.findall(r"\w+", annotation)]
    return [part for each in found for part in (getattr(each, "__args__", None) or (each,)) if part is not None]


def known_only(value: Any, redactor: Redactor, depth: int = 0) -> Any:
    """The value with what is known of it: of an object that others write, the keys above; a text that is JSON is read as that."""
    if depth > _DEEPEST:
        return LEFT_OUT
    if isinstance(value, dict):
        return {key: _of_key(str(key), each, redactor, depth) for key, each in value.items()}
    if isinstance(value, list):
        return [known_only(each, redactor, depth + 1) for each in value]
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.dumps(known_only(json.loads(value), redactor, depth + 1))
        except (ValueError, RecursionError):
            return known_text(value, redactor)
    return redactor.clean(value) if isinstance(value, str) else value


def known_text(text: str, redactor: Redactor) -> str:
    """The same of a text that should be JSON and is not whole: strings and numbers are kept under known keys, nothing else."""
    key, kept, end, names = "", [], 0, _known()
    for match in _STRING.finditer(text):
        known = key in names and not is_credential(key)
        kept.append(_between(text[end : match.start()], known=known))
        end = match.end()
        if match[1] is None:
            kept.append(f'"{LEFT_OUT}')
        elif match[2]:
            key = match[1]
            names = frozenset(_OF_IPAM.split()) if key == "ipam" else names  # to its end, which is not looked for
            kept.append(match[0] if key in names or key == "ipam" or is_credential(key) else f'"{LEFT_OUT}":')
        else:
            kept.append(json.dumps(_string(match[1], redactor)) if known else f'"{LEFT_OUT}"')
            if is_credential(key):
                redactor.learn(match[1])
    return "".join(kept) + _between(text[end:], known=False)


def known_request(text: str, redactor: Redactor) -> str:
    """The same of a call as it is in the spool: a head with CNI's variables, and the network."""
    head, empty, body = text.partition("\r\n\r\n") if "\r\n\r\n" in text else text.partition("\n\n")
    lines = [redactor.clean(line) if _HEADER.match(line) else LEFT_OUT for line in head.splitlines()]
    try:
        network = json.dumps(known_only(json.loads(body), redactor)) if body else ""
    except (ValueError, RecursionError):
        network = known_text(body, redactor)
    return "\n".join(lines) + ("\n\n" if empty else "") + network


def _of_key(key: str, value: Any, redactor: Redactor, depth: int) -> Any:
    if is_credential(key):
        redactor.learn(value)
        return REDACTED
    if key == "ipam" and isinstance(value, dict):
        return {name: _of_ipam(str(name), each, redactor) for name, each in value.items()}
    if key not in _known() and not _RECORD_KEY.fullmatch(key):
        return LEFT_OUT if value not in (None, "", [], {}) and not isinstance(value, bool) else value
    return known_only(value, redactor, depth + 1)


def _of_ipam(key: str, value: Any, redactor: Redactor) -> Any:
    if is_credential(key):
        redactor.learn(value)
        return REDACTED
    if key not in _OF_IPAM.split():
        return LEFT_OUT
    if isinstance(value, dict):
        return {name: _of_ipam(str(name), each, redactor) for name, each in value.items()}
    if isinstance(value, list):
        return [_of_ipam(key, each, redactor) for each in value]
    return redactor.clean(value) if isinstance(value, str) else value


def _string(escaped: str, redactor: Redactor) -> Any:
    try:
        return known_only(json.loads(f'"{escaped}"', strict=False), redactor)
    except ValueError:
        return LEFT_OUT


def _between(text: str, *, known: bool) -> str:
    """What stands between strings: signs, words of JSON, and numbers where their key is known."""

    def keep(match: re.Match[str]) -> str:
        is_kept = match[0] in ("true", "false", "null") or (known and _NUMBER.fullmatch(match[0]))
        return match[0] if is_kept else LEFT_OUT

    return _NOT_JSON.sub(keep, text)

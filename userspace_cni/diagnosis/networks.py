"""Checks the networks of this plugin in definitions for Multus and CNI configurations, as runtimes hand them over.

Pure. The documents are untrusted: nothing in them may make this fail. Networks that are not ours are only named, but for those of
ovs-cni: notes say what they would be as ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kubevirt.lint.kinds import GROUPS, group_of, judge_kind
from kubevirt.lint.linted_documents import flatten, label_of
from kubevirt.lint.network import OUR_TYPE
from kubevirt.lint.reading import DocumentReport
from userspace_cni.base.findings import Finding, Severity
from userspace_cni.base.misspelt import is_within
from userspace_cni.cni import ovs_cni_network
from userspace_cni.cni.conflist import plugins_of
from userspace_cni.diagnosis.traps import findings_of
from userspace_cni.node.remarks import remarks_on
from userspace_cni.pod.strict_json import JsonReader

_DEFINITION: Final = "NetworkAttachmentDefinition"
_DELEGATING: Final = "multus"
_ALIKE_EDITS: Final = 2
_DUPLICATES_MAX: Final = 50
_OF_THE_LOG: Final = ("logFile", "logLevel")
"""Keys that change nothing of the interface, whatever they say."""


@dataclass(frozen=True)
class Place:
    """Where something was found: the file, the number of its document from 1 (0: all of the file), the network's name."""

    file: str
    document: int = 0
    network: str = ""

    def __str__(self) -> str:
        """For people, with the document where file and network do not identify it."""
        document = f"document {self.document}" if self.document > 1 else ""
        network = f"network {self.network}" if self.network else ""
        return ": ".join(part for part in (self.file, document, network) if part)


@dataclass
class JudgedNetworks:
    """`networks`: how many of this plugin were read; `ignored`: file and name of all other objects. `found`: in their order."""

    networks: int = 0
    ignored: list[str] = field(default_factory=list)
    found: list[tuple[Place, Finding]] = field(default_factory=list)

    def add(self, place: Place, severity: Severity, name: str, message: str, remedy: str, key: str = "") -> None:
        """Add a finding. `key`: of the configuration, with its path, "" for all of it."""
        self.take(place, Finding(name, severity, "", message, remedy, key))

    def take(self, place: Place, finding: Finding) -> None:
        self.found.append((place, replace(finding, subject=str(place))))


def judge_document(judged: JudgedNetworks, file: str, number: int, content: object) -> None:
    """Judge what is in one document: a definition, a CNI configuration, or a list of such."""
    for kind, each in flatten(content):
        label = label_of(kind, each)
        place = Place(file, number, label.removeprefix(f"{_DEFINITION} "))
        if kind == _DEFINITION and isinstance(each, Mapping):
            _judge_definition(judged, place, each, label)
        elif isinstance(each, Mapping) and "kind" not in each and (isinstance(each.get("type"), str) or "plugins" in each):
            judge_configuration(judged, file, number, each)
        else:
            judged.ignored.append(f"{file}: {label}")
            _judge_kind(judged, place, each)


def judge_text(judged: JudgedNetworks, place: Place, text: str, named: str = "") -> None:
    """Judge the JSON of a configuration; a key that is given twice in it is a finding. `named`: a definition's name, else "".

    Other things than networks of ours are passed over."""
    twice: dict[str, None] = {}
    try:
        content = _plain(JsonReader(_Pairs).read(text), "", twice)
    except (ValueError, RecursionError) as error:
        judged.add(
            place, "error", "bad-input", f"it is not JSON: {str(error)[:100]}", "correct the text: runtimes read it as JSON"
        )
        return
    if judge_configuration(judged, place.file, place.document, content, place.network, named):
        for key in list(twice)[:_DUPLICATES_MAX]:
            message = f"key '{key}' is given twice: the last one counts, in other readers perhaps the first"
            judged.add(place, "warning", "duplicate-key", message, "leave one of the two out", key)


def judge_configuration(
    judged: JudgedNetworks, file: str, number: int, content: object, network: str = "", named: str = ""
) -> bool:
    """Judge our plugin's entries in a configuration or a list; whether there was one, or one that is probably meant as ours."""
    own = content.get("name") if isinstance(content, Mapping) else None
    place = Place(file, number, network or (own if isinstance(own, str) else ""))
    if not isinstance(content, Mapping):
        judged.add(place, "error", "bad-input", "it is not a JSON object", "a CNI configuration is an object")
        return False
    plugins = list(_plugins(content, {"name": named} if named else {}, ""))
    if not plugins:
        judged.add(place, "error", "bad-input", "key 'plugins' has no plugin in it", "name the plugins of the list")
    seen = False
    for path, plugin in plugins:
        kind = plugin.get("type")
        if kind == OUR_TYPE:
            judged.networks += 1
            seen = True
            _judge_plugin(judged, place, path, plugin)
        elif kind == ovs_cni_network.TYPE:
            _show_as_ours(judged, place, path, plugin)
        elif isinstance(kind, str) and is_within(kind.lower(), OUR_TYPE, _ALIKE_EDITS):
            seen = True
            message = f"key '{path}type' is {kind!r}: this plugin's is '{OUR_TYPE}'"
            judged.add(place, "error", "foreign-type", message, f"write '{OUR_TYPE}', if this plugin is meant", f"{path}type")
    if plugins and not seen:
        types = ", ".join(str(plugin.get("type") or "none")[:40] for _, plugin in plugins)
        judged.ignored.append(f"{file}: {place.network or 'a configuration without a name'} (CNI type {types})")
    return seen


def _judge_kind(judged: JudgedNetworks, place: Place, content: object) -> None:
    """Report an object that is probably meant as a definition."""
    if isinstance(content, Mapping) and (content.get("kind") == _DEFINITION or group_of(content) == GROUPS[_DEFINITION]):
        report = DocumentReport("")
        judge_kind(content, report)
        for finding in findings_of(report.found):
            judged.take(place, finding)


def _judge_definition(judged: JudgedNetworks, place: Place, content: Mapping[str, Any], label: str) -> None:
    spec, metadata = content.get("spec"), content.get("metadata")
    text = spec.get("config") if isinstance(spec, Mapping) else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if text is None or text == "":
        judged.ignored.append(f"{place.file}: {label} (without spec.config: a file on the node has it)")
    elif isinstance(text, str):
        judge_text(judged, place, text, name if isinstance(name, str) else "")
    else:
        remedy = "write it as a string: `config: |`, and the JSON below it"
        judged.add(place, "error", "bad-input", "spec.config is no string", remedy)


def _judge_plugin(judged: JudgedNetworks, place: Place, path: str, plugin: Mapping[str, Any]) -> None:
    for remark in remarks_on(plugin):
        judged.take(place, replace(_named(remark), path=f"{path}{remark.path}" if remark.path else ""))


def _show_as_ours(judged: JudgedNetworks, place: Place, path: str, plugin: Mapping[str, Any]) -> None:
    """Notes: what a network of ovs-cni is as one of this plugin, what of it has no equal here, and what ADD would say of it."""
    converted = ovs_cni_network.convert_network(plugin)
    ours = json.dumps(converted.configuration, default=str)
    message = f"it is a network of ovs-cni, and not checked. As one of this plugin it is {ours}"
    remedy = (
        'try that with one pod, as docs/from-ovs-cni.md says; where the bridge has the netdev datapath, with "engine": "ovs-dpdk"'
    )
    judged.add(place, "note", "ovs-cni-network", message, remedy, f"{path}type")
    for key, text in converted.losses:
        judged.add(place, "note", "ovs-cni-key", f"key '{key}' of ovs-cni: {text}", "", f"{path}{key}")
    for remark in remarks_on(json.loads(ours)):
        judged.take(place, replace(remark, name="ovs-cni-key", severity="note", message=f"then {remark.message}"))


def _named(remark: Finding) -> Finding:
    """A warning of the plugin with the name of its kind and a remedy; a refusal as it is."""
    if remark.code:
        return remark
    if "is unknown and ignored" in remark.message or "are unknown and ignored" in remark.message:
        return replace(remark, name="unknown-key", remedy="write it as in docs/network.md, or leave it out")
    if "deprecated" in remark.message:
        remedy = 'write "mode": "client" into host.vhost, with an application that makes the socket'
        return replace(remark, name="server-mode", remedy=remedy)
    if "as ovs-cni means them" in remark.message:
        return replace(remark, name="foreign-words", remedy="write 'from' and 'to'")
    severity: Severity = "note" if remark.path in _OF_THE_LOG else "warning"
    return replace(remark, name="ignored-value", severity=severity, remedy="leave it out")


def _plugins(content: Mapping[str, Any], given: Mapping[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each plugin of a configuration with its path, and with the keys that it inherits."""
    if isinstance(content.get("plugins"), list):
        for number, plugin in plugins_of(content, given):
            yield f"{path}plugins[{number}].", plugin
    elif content.get("type") == _DELEGATING and isinstance(content.get("delegates"), list):
        for number, delegate in enumerate(content["delegates"]):
            if isinstance(delegate, Mapping):
                yield from _plugins(delegate, {}, f"{path}delegates[{number}].")
    else:
        yield path, {**given, **content}


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with all its keys."""


def _plain(value: object, path: str, twice: dict[str, None]) -> object:
    """The value as usual; the paths of keys that an object has twice are added to `twice`."""
    if isinstance(value, _Pairs):
        found: dict[str, object] = {}
        for key, held in value:
            where = f"{path}.{key}" if path else key
            if key in found:
                twice[where] = None
            found[key] = _plain(held, where, twice)
        return found
    if isinstance(value, list):
        return [_plain(held, f"{path}[{number}]", twice) for number, held in enumerate(value)]
    return value

"""Reads the environment and the network configuration of one call into a typed request. Strict and pure.

`read_environment` and `read_network` check everything that holds for every plugin (CNI SPEC 1.1.0, sections 2 and 3); `options`
reads our own options. Messages name the variable or key, its value and what would be right; they must never repeat stdin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from userspace_cni.base.errors import BadEnvironment, InvalidConfig, Undecodable, UnsupportedVersion
from userspace_cni.base.notices import Recipient
from userspace_cni.cni import former_network, keys, outline
from userspace_cni.cni.json_values import IDENTIFIER, NETWORK_NAME_MAX, json_type, read_typed
from userspace_cni.cni.network_keys import read
from userspace_cni.cni.result import LATEST, SUPPORTED_VERSIONS
from userspace_cni.pod.strict_json import JsonReader

Verb = Literal["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"]

VERBS: Final[tuple[Verb, ...]] = ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION")
ATTACHMENT_VERBS: Final = frozenset({"ADD", "DEL", "CHECK"})
TRAVELLING: Final = ("TRACEPARENT", "TRACESTATE", "BAGGAGE")
"""OpenTelemetry's variables: delegates get them, and CNI_* (libcni, spec 1.1.0)."""

DELEGATED: Final = "USERSPACE_CNI_DELEGATED"
"""Set for the plugins that we run. In our own environment it shows that a network names this plugin as its IPAM plugin."""

SUBNET_IPAM: Final = "host-local"
"""The IPAM plugin of a network that names a Subnet."""

_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    "GC": ("CNI_PATH",),
    "STATUS": (),
    "VERSION": (),
}
_SINCE: Final = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
_VERSION: Final = re.compile(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){0,2}")
_POD_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_IFNAME_BYTES = 15
_JSON: Final = JsonReader(deepest=99)
_ATTACHMENTS_KEYS: Final = ("cni.dev/valid-attachments", "cni.dev/attachments")


@dataclass(frozen=True)
class Environment:
    """The CNI_* variables of one call. Unused ones are empty."""

    verb: Verb
    container_id: str
    netns: str
    ifname: str
    args: Mapping[str, str]
    path: tuple[str, ...]
    netns_override: bool
    variables: Mapping[str, str]

    @property
    def pod_namespace(self) -> str:
        """K8S_POD_NAMESPACE of CNI_ARGS, "" where the runtime sends none."""
        return self.args.get("K8S_POD_NAMESPACE", "")

    @property
    def pod_name(self) -> str:
        """K8S_POD_NAME of CNI_ARGS."""
        return self.args.get("K8S_POD_NAME", "")

    @property
    def pod_uid(self) -> str:
        """K8S_POD_UID of CNI_ARGS."""
        return self.args.get("K8S_POD_UID", "")


@dataclass(frozen=True)
class Network:
    """The parts of a network configuration that every plugin reads; `raw` is the whole decoded object."""

    name: str
    version: str
    ipam: str
    """The delegated IPAM plugin's name; "" for none."""
    raw: Mapping[str, Any]
    subnet: str = ""
    """The Subnet object whose addresses it has; "" for none."""


@dataclass(frozen=True)
class Request:
    """One call. `stdin`: the configuration's bytes unchanged, for delegates and the record."""

    environment: Environment
    network: Network
    stdin: bytes


@dataclass(frozen=True)
class Called:
    """When a verb was called: in which boot, and nanoseconds of CLOCK_BOOTTIME. Wall clocks order nothing."""

    boot_id: str
    boottime_ns: int


def subject_of(environ: Mapping[str, str]) -> dict[str, str]:
    """The facts of a log line about the call's attachment, from its variables, which are not validated yet."""
    args = _read_args(environ.get("CNI_ARGS", ""), strict=False)
    namespace, name = args.get("K8S_POD_NAMESPACE", ""), args.get("K8S_POD_NAME", "")
    return {
        "pod": f"{namespace}/{name}" if name else "",
        "container": environ.get("CNI_CONTAINERID", ""),
        "interface": environ.get("CNI_IFNAME", ""),
    }


def recipient_of(environ: Mapping[str, str]) -> Recipient:
    """The pod that the call is for, as `subject_of`: each of its texts may be ""."""
    args = _read_args(environ.get("CNI_ARGS", ""), strict=False)
    namespace, name, uid = (args.get(f"K8S_POD_{part}", "") for part in ("NAMESPACE", "NAME", "UID"))
    return Recipient(namespace, name, uid, environ.get("CNI_IFNAME", ""))


def read_verb(environ: Mapping[str, str]) -> Verb:
    """Read CNI_COMMAND. Raises BadEnvironment for anything that is not a verb, lower-case ones included."""
    command = environ.get("CNI_COMMAND", "")
    if command not in VERBS:
        raise BadEnvironment(f"CNI_COMMAND is {command!r}: not a verb", f"it must be one of {', '.join(VERBS)}")
    return command


def read_environment(environ: Mapping[str, str], verb: Verb) -> Environment:
    """Read and check the variables that `verb` needs. Empty means unset: libcni always exports all six.

    Raises BadEnvironment naming every variable that is missing, or the one that is malformed. Variables that the verb does not
    use are not checked (a VERSION probe comes with NETNS=IFNAME=PATH="dummy").
    """
    if environ.get(DELEGATED):
        raise InvalidConfig(
            "the network's 'ipam.type' leads back to this plugin", "it leases no addresses: name host-local or static"
        )
    missing = [name for name in _REQUIRED[verb] if not environ.get(name)]
    if missing:
        raise BadEnvironment(f"required environment variables are missing: [{','.join(missing)}]", f"CNI_COMMAND is {verb}")
    travelling = {name: value for name, value in environ.items() if value and (name.startswith("CNI_") or name in TRAVELLING)}
    _validate_bytes(travelling)
    if verb in ATTACHMENT_VERBS:
        _validate_container_id(environ["CNI_CONTAINERID"])
        _validate_ifname(environ["CNI_IFNAME"])
    used = verb in ATTACHMENT_VERBS
    return Environment(
        verb=verb,
        container_id=environ["CNI_CONTAINERID"] if used else "",
        netns=environ.get("CNI_NETNS", "") if used else "",
        ifname=environ["CNI_IFNAME"] if used else "",
        args=_read_args(environ.get("CNI_ARGS", ""), strict=verb == "ADD") if used else {},
        path=tuple(part for part in environ.get("CNI_PATH", "").split(":") if part),
        netns_override=environ.get("CNI_NETNS_OVERRIDE", "").lower() in {"1", "true"},
        variables=travelling,
    )


def _validate_bytes(variables: Mapping[str, str]) -> None:
    """Refuse what no process's environment can hold: delegates get these variables, which may come over the agent's socket."""
    for name, value in variables.items():
        try:
            raw = f"{name}={value}".encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raw = b"\0"
        if b"\0" in raw:
            raise BadEnvironment(f"{name!a} cannot be an environment variable", f"{value!a} holds a NUL or is no bytes")


def _validate_container_id(value: str) -> None:
    if not IDENTIFIER.fullmatch(value):
        raise BadEnvironment("CNI_CONTAINERID is not a container ID", f"{value!r} does not match {IDENTIFIER.pattern}")


def _validate_ifname(value: str) -> None:
    reason = ""
    if len(value.encode("utf-8", "surrogateescape")) > _IFNAME_BYTES:
        reason = f"longer than {_IFNAME_BYTES} bytes"
    elif value in {".", ".."}:
        reason = "a directory name"
    elif any(char in "/:" or char.isspace() for char in value):
        reason = "it holds a '/', a ':' or white space"
    if reason:
        raise BadEnvironment("CNI_IFNAME is not an interface name", f"{value!r}: {reason}")


def _read_args(text: str, *, strict: bool) -> dict[str, str]:
    """Read CNI_ARGS, `K=V;K=V`. A key may come twice (Multus does that); the last one counts."""
    args = {}
    for item in text.split(";"):
        key, separator, value = item.partition("=")
        if separator:
            args[key] = value
        elif item and strict:
            raise BadEnvironment(f"CNI_ARGS holds {item!r}", "each item must read KEY=VALUE")
    uid = args.get("K8S_POD_UID", "")
    if uid and not _POD_UID.fullmatch(uid):
        # it becomes a part of paths; DEL works from the record and does not need it
        if strict:
            raise BadEnvironment(f"CNI_ARGS holds K8S_POD_UID={uid!r}", f"it must match {_POD_UID.pattern}")
        del args["K8S_POD_UID"]
    return args


def decode(stdin: bytes) -> dict[str, Any]:
    """Decode the configuration object. Raises Undecodable unless it is exactly one JSON object (RFC 8259, no NaN, no BOM).

    Also refuses what could not be passed on: numbers beyond a float, half a surrogate pair, nesting deeper than any result.
    """
    try:
        raw = _JSON.read(stdin.decode("utf-8"))
    except ValueError as error:
        where = error.reason if isinstance(error, UnicodeDecodeError) else str(error)[:120]
        raise Undecodable("the network configuration on stdin is not JSON", f"{where} ({len(stdin)} bytes were read)") from error
    if not isinstance(raw, dict):
        raise Undecodable("the network configuration on stdin is not a JSON object", f"it is {json_type(raw)}")
    return raw


def decode_words(stdin: bytes) -> dict[str, Any]:
    """As `decode`; of a configuration that is too large for any verb, `outline.WORDS` alone."""
    return decode(stdin) if outline.is_within(stdin, outline.LATER) else {**outline.read_outline(stdin)}


def read_network(stdin: bytes, verb: Verb) -> Network:
    """Read and check what every plugin must, in the reference library's order: JSON, name, version, verb.

    Raises Undecodable (6), InvalidConfig (7) for the size and the name, UnsupportedVersion (1). DEL is served whatever the size:
    of a configuration that is too large for any other verb, `raw` has name, version and type alone.
    """
    most = outline.NEW if verb in ("ADD", "STATUS") else outline.LATER
    if verb != "DEL" and not outline.is_within(stdin, most):
        raise outline.too_large(stdin, most)
    raw = decode_words(stdin)
    name = read_typed(raw, "name", str, "")
    version = read_typed(raw, "cniVersion", str, "")
    if not IDENTIFIER.fullmatch(name):
        what = "missing" if not name else f"{name!r}, which does not match {IDENTIFIER.pattern}"
        raise InvalidConfig("the network has no valid name", f"key 'name' is {what}")
    if len(name) > NETWORK_NAME_MAX:
        raise InvalidConfig(
            "the network has no valid name", f"key 'name' has {len(name)} characters, at most {NETWORK_NAME_MAX} are taken"
        )
    is_former = former_network.is_former(raw)
    version = _check_version(version or (former_network.VERSIONS[0] if is_former else ""), verb, is_former=is_former)
    if is_former:
        raw = former_network.translate(raw)
    ipam: str = read_typed(read_typed(raw, "ipam", dict, {}), "type", str, "", path="ipam.")
    subnet = _read_subnet(raw)
    return Network(name, version, ipam or (SUBNET_IPAM if subnet else ""), raw, subnet)


def _read_subnet(raw: Mapping[str, Any]) -> str:
    return read(keys.normalize_keys(raw, ("subnet",), ""), "subnet") or ""


def _check_version(version: str, verb: Verb, *, is_former: bool) -> str:
    """The version, if the network can have it; `is_former`: one of `former_network.VERSIONS`, too."""
    if version and not _VERSION.fullmatch(version) and verb not in {"ADD", "DEL"}:
        raise Undecodable(f"cniVersion {version!r} is not a version", f"supported are {', '.join(SUPPORTED_VERSIONS)}")
    shown = repr(version) if version else "missing, which means 0.1.0"
    supported = (*(former_network.VERSIONS if is_former else ()), *SUPPORTED_VERSIONS)
    if version not in supported:
        raise UnsupportedVersion(
            "incompatible CNI versions",
            f"cniVersion of the configuration is {shown}; supported are {', '.join(supported)}",
        )
    since = _SINCE.get(verb)
    if since and supported.index(version) < supported.index(since):
        raise UnsupportedVersion(f"{verb} needs cniVersion {since}", f"that of the configuration is {version}")
    return version


def valid_attachments(network: Network) -> frozenset[tuple[str, str]] | None:
    """Read GC's list as (container ID, ifname) pairs; None when the key is absent. `null` is the empty list.

    The key was renamed while 1.1.0 was written, and libcni sends both. Raises InvalidConfig for an entry of another shape.
    """
    key = next((key for key in _ATTACHMENTS_KEYS if key in network.raw), None)
    if key is None:
        return None
    entries = network.raw[key]
    if entries is None:
        return frozenset()
    if not isinstance(entries, list):
        raise InvalidConfig(f"key '{key}' is {json_type(entries)}", "it must be a list of {containerID, ifname}")
    pairs = set()
    for index, entry in enumerate(entries):
        pair = (entry.get("containerID"), entry.get("ifname")) if isinstance(entry, dict) else (None, None)
        if not all(isinstance(part, str) and part for part in pair):
            raise InvalidConfig(f"key '{key}[{index}]' is no attachment", "it must be {containerID, ifname}; nothing was removed")
        pairs.add(cast("tuple[str, str]", pair))
    return frozenset(pairs)


def version_of(stdin: bytes) -> str:
    """The version for an error about this input: the configuration's if it is supported, else our highest."""
    try:
        version = decode_words(stdin).get("cniVersion")
    except Undecodable:
        return LATEST
    return version if version in SUPPORTED_VERSIONS else LATEST

"""The settings of a node's administrator: one table, from TOML files and the environment.

The environment overrides the node's file, that the cluster's, and that the defaults, key by key. An unknown key or a value of the
wrong type is an error that names file (or variable), key and value: a typo must never silently become a default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

from userspace_cni.base import port_kinds
from userspace_cni.base.errors import PASSING, InvalidConfig, Unavailable, Undecodable
from userspace_cni.base.gateways import LINK_NAME, Gateway, read_gateways
from userspace_cni.base.log import FORMATS, LEVELS
from userspace_cni.base.mirrors import NodeMirror, read_node_mirrors
from userspace_cni.base.provider_networks import ProviderNetwork, read_provider_networks
from userspace_cni.base.tenancy import Bounds, Rule, bounds_of, read_rules
from userspace_cni.base.whereabouts import (
    BOOLEANS,
    CLUSTER_FILE,
    CONFIG_FILE,
    FILE_MAX,
    PREFIX,
    RUN_DIR,
    STATE_DIR,
    agent_socket,
    is_path,
    normalized,
)
from userspace_cni.pod.socket_path import SUN_PATH_MAX

_OTHER_NAMES: Final = {"ovs_rundir": "OVS_RUNDIR", "ovs_sockdir": "OVS_SOCKDIR"}
_FALLBACK_NAMES: Final = {"node_name": "NODE_NAME", "controller_namespace": "POD_NAMESPACE"}
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "mount_pod_dirs": ("always", "long"),
    "netconf_kubeconfig": ("never", "fallback", "always"),
    "log_level": tuple(LEVELS),
    "log_format": FORMATS,
    "kernel_port": port_kinds.CHOICES,
}
_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "shared_volume": (_LABEL, "it must be a volume name (RFC 1123 label)"),
    "controller_namespace": (_LABEL, "it must be the name of a namespace (RFC 1123 label)"),
    "gateway_bridge": (rf"({LINK_NAME})?", f"it must be empty or match {LINK_NAME}"),
}
_ADDRESS: Final = r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+):[0-9]{1,5}"
"""HOST:PORT, an IPv6 address in brackets."""
_TABLES: Final[Mapping[str, tuple[str, Callable[[object, str], object]]]] = {
    "rule": ("rules", read_rules),
    "mirror": ("mirrors", read_node_mirrors),
    "gateway": ("gateways", read_gateways),
    "provider_network": ("provider_networks", read_provider_networks),
}
"""The arrays of tables of the file, each with the field that holds it, which no key of the same name sets, and its reader."""
_OF_TABLES: Final = frozenset(name for name, _ in _TABLES.values())
_DIRECTORIES: Final = ("dir", "_root")
_FILES: Final = ("socket", "kubeconfig", "switch_netns", "mtu_file", "routes_file", "cri_socket", "cni_conf_file")
_MAY_BE_EMPTY: Final = ("ovs_sockdir", *_FILES)
_TYPES: Final[Mapping[type, str]] = {
    str: "string", int: "whole number", float: "number", bool: "boolean", tuple: "list of strings"
}  # fmt: skip
_COUNTS: Final[Mapping[str, int]] = {"devices_per_bridge": 1000, "afxdp_max": 1000, "waiting_per_namespace": 1000}
"""The most that may be set. The kubelet takes messages of 4 MiB, which hold many more devices; a node has fewer pods."""
_RANGES: Final[Mapping[str, tuple[int, int]]] = {"route_protocol": (5, 255), "route_metric6": (1, 1023)}
_OTHERS_NUMBERS: Final = (149,)
"""Protocol numbers from 5 on that have a meaning here: 149 is of the node's own routes."""
MTU_MIN: Final = 68
"""IPv4's (RFC 791)."""
MTU_MAX: Final = 65535
_SUN_PATH_SPARE = 60
"""short_dir, "/", a pod UID (36) and "/<cid12>-<ifname>" (29) have to fit 107 bytes; 60 leaves room for a usual ifname."""


@dataclass(frozen=True)
class Settings:
    """The settings of docs/settings.md, by their TOML keys."""

    ovsdb: str = "unix:/var/run/openvswitch/db.sock"
    """OVSDB's remote: `unix:PATH` or `tcp:IP:PORT`."""
    ovs_rundir: str = "/var/run/openvswitch"
    """Where ovs-vswitchd's pid file, control socket and bridge management sockets are. Environment: OVS_RUNDIR."""
    ovs_sockdir: str = ""
    """Where OVS makes server-mode sockets; "" asks the switch. Environment: OVS_SOCKDIR."""
    switch_netns: str = ""
    """Path of the network namespace in which ovs-vswitchd opens its ports; "" for that of this process."""
    kernel_port: str = port_kinds.AUTO
    """How OVS opens the host end of a kernel link, for networks that do not say: one of port_kinds.CHOICES."""
    afxdp_max: int = 16
    """How many ports of type afxdp the switch may have: ovs-vswitchd takes 76 MiB of memory for each."""
    mtu: int = 0
    """MTU of kernel links whose network says none; 0 where that is not said here either."""
    mtu_file: str = ""
    """A file of the node that says the MTU instead, as openshift-sdn writes it; "" for none."""
    kubeovn_annotations: bool = False
    """Whether the pods' annotations of kube-ovn (ovn.kubernetes.io/…) and of OVN's tools (ovn) decide about interfaces."""
    gateway_bridge: str = ""
    """The bridge on which the node gets the port of which its annotations of kube-ovn speak; "" for none."""
    network_objects: bool = False
    """Whether objects of the API (ProviderNetwork, Vlan, Subnet of userspace-cni.io) decide about this node's network."""
    routes: bool = False
    """Whether Route objects (k8s.ovn.org) and `routes_file` decide about routes in pods."""
    route_protocol: int = 148
    """The number that the kernel has with each route that is made so (rtm_protocol)."""
    route_metric6: int = 100
    """The metric of those of IPv6, lower than others have."""
    route_exclude_namespaces: tuple[str, ...] = ("kube-system",)
    """Namespaces whose pods a Route concerns only if it names them."""
    route_cluster_ranges: tuple[str, ...] = ()
    """Networks of the cluster's Services and pods, which stay with the CNI's default route where a Route takes that."""
    routes_file: str = ""
    """A file with routes, beside the objects of the API; "" for none."""
    cni_conf_file: str = ""
    """A network (*.conflist) that the agent puts in place for runtimes, by its path in the agent's own root; "" for none."""
    cni_conf_dir: str = "/etc/cni/net.d"
    """Where it is put: the runtimes' directory of networks."""
    cni_cache_dir: str = "/var/lib/cni"
    """Where libcni keeps what it knows of sandboxes."""
    cri_socket: str = "/run/containerd/containerd.sock"
    """The container runtime's socket, for pods of which nothing else tells; "" for none."""
    state_dir: str = STATE_DIR
    """Records. Must survive a reboot."""
    run_dir: str = RUN_DIR
    """Locks, and the agent's socket."""
    socket: str = ""
    """The agent's socket; "" for <run_dir>/agent.sock."""
    hand_over: bool = True
    """Whether the plugin as a process hands its calls to an agent of the same directories."""
    legacy_state_dir: str = "/var/lib/cni/usrspcni/data"
    """Records of the former plugin."""
    short_dir: str = "/var/lib/vhost_sockets"
    """Where pod directories are mounted for OVS."""
    mount_pod_dirs: str = "always"
    """`always`, or `long`: only those whose socket path is over 107 bytes, for a switch that does not see short_dir."""
    default_shared_dir: str = "/usr/local/var/run/openvswitch"
    """Base of the socket directory of a pod that has none."""
    kubelet_dir: str = "/var/lib/kubelet"
    """Kubelet's root directory."""
    shared_volume: str = "shared-dir"
    """Name of the pod volume that takes the sockets."""
    require_volume: bool = True
    """Whether ADD refuses a pod whose spec is known and gives its socket no place; false: such a pod is warned."""
    node_name: str = ""
    """This node's name in the API; "" for the host name. Environment: also NODE_NAME."""
    kubeconfig: str = ""
    """Credentials of our own for the API server; "" for the pod's service account, if this process runs in a pod."""
    netconf_kubeconfig: str = "fallback"
    """Whether a network's own `kubeconfig` is used: `never`, `fallback` (unless this process has its own), `always`."""
    kubeconfig_dirs: tuple[str, ...] = ("/etc/cni", "/etc/kubernetes")
    """Directories below which a network's `kubeconfig` must lie."""
    kubeconfig_exec: bool = False
    """Whether a kubeconfig that a network names may run programs (exec plugins), as root."""
    shared_dirs: tuple[str, ...] = ()
    """Directories below which `sharedDir` of a pod's network must lie; () for `usual_shared_dirs`."""
    devices_per_bridge: int = 0
    """Devices that the kubelet is offered of each bridge; 0 for no device plugin."""
    device_info_dir: str = "/var/run/k8s.cni.cncf.io/devinfo"
    """The directory below which device-info files are read and written."""
    host_root: str = "/"
    """Where an agent in a container sees the host's root."""
    tick_s: float = 30.0
    """Seconds between two reconciliations of the agent."""
    deadline_s: float = 30.0
    """Seconds that one verb may take."""
    waiting_per_namespace: int = 16
    """How many ADDs of the pods of one namespace may wait for addresses in their pods' annotations, in the agent."""
    spool_max: int = 1024
    """DELs that are kept while the agent is away."""
    metrics_listen: str = ""
    """`host:port` for metrics over TCP; "" for none."""
    health_listen: str = ""
    """`host:port` for /healthz and /readyz over TCP; "" for none."""
    controller_namespace: str = "userspace-cni"
    """Where the controllers have their Lease: a namespace of the API. Environment: also POD_NAMESPACE."""
    log_level: str = "info"
    """The least important level that is logged: a key of log.LEVELS."""
    log_format: str = "text"
    """How lines of the log are written: one of log.FORMATS."""
    rules: tuple[Rule, ...] = ()
    """What pods of which namespaces may use: the tables `[[rule]]` of the file; no environment variable sets them."""
    mirrors: tuple[NodeMirror, ...] = ()
    """The node's own mirrors: the tables `[[mirror]]` of the file; no environment variable sets them."""
    gateways: tuple[Gateway, ...] = ()
    """Ports of the node itself on bridges: the tables `[[gateway]]` of the file; no environment variable sets them."""
    provider_networks: tuple[ProviderNetwork, ...] = ()
    """Bridges with an uplink: the tables `[[provider_network]]` of the file; no environment variable sets them."""

    @property
    def agent_socket(self) -> str:
        """Path of the agent's socket."""
        return agent_socket(self.socket, self.run_dir)

    @property
    def usual_shared_dirs(self) -> tuple[str, ...]:
        """Directories for `sharedDir` of a pod's network: `shared_dirs`, by default those of the former plugin and OVS."""
        return self.shared_dirs or (self.default_shared_dir, "/var/lib/cni/usrspcni", self.ovs_rundir)

    def bounds(self, namespace: str) -> Bounds | None:
        """Where `sharedDir` may be in a network of a pod of that namespace; None (anywhere) for "", a call without a pod."""
        bounds = bounds_of(self.rules, namespace, self.usual_shared_dirs)
        return replace(bounds, never=(self.state_dir, self.run_dir, self.short_dir)) if bounds else None


def files(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The files that `load` reads, of which the last one wins; by default they may be absent."""
    named = environ.get(f"{PREFIX}CONFIG", "")
    return (named,) if named else (CLUSTER_FILE, CONFIG_FILE)


def load(environ: Mapping[str, str]) -> Settings:
    """Read the settings. Raises Undecodable for a file that is not TOML or cannot be read, InvalidConfig for a value.

    Raises Unavailable when the file cannot be read now.
    """
    named = environ.get(f"{PREFIX}CONFIG", "")
    values: dict[str, Any] = {}
    for path in files(environ):
        values |= _from_file(path, required=bool(named))
    for item in fields(Settings):
        if item.name in _OF_TABLES:
            continue
        names = [_OTHER_NAMES.get(item.name, PREFIX + item.name.upper()), _FALLBACK_NAMES.get(item.name, "")]
        name = next((name for name in names if name and environ.get(name)), None)
        if name:
            values[item.name] = _from_text(item.name, environ[name], item.default, f"environment variable {name}")
    return Settings(**values)


def _from_file(path: str, *, required: bool) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_MAX + 1)
    except FileNotFoundError as error:
        if required:
            raise InvalidConfig(f"settings file {path} is absent", f"{PREFIX}CONFIG names it") from error
        return {}
    except OSError as error:
        wrong = Unavailable if error.errno in PASSING else Undecodable
        raise wrong(f"reading settings file {path}: {error.strerror}", "the plugin runs as root") from error
    if len(content) > FILE_MAX:  # rules beyond it would have no effect
        raise Undecodable(f"settings file {path} is too long", f"at most {FILE_MAX} bytes are read")
    import tomllib

    try:
        raw = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"settings file {path} is not TOML", str(error)) from error
    known = {item.name: item.default for item in fields(Settings) if item.name not in _OF_TABLES}
    values: dict[str, Any] = {}
    for key in _TABLES.keys() & raw.keys():
        name, read = _TABLES[key]
        values[name] = read(raw.pop(key), f"settings file {path}")
    for key, value in raw.items():
        if key not in known:
            keys = ", ".join([*known, *_TABLES])
            raise InvalidConfig(f"settings file {path}: unknown key '{key}' = {value!r}", f"keys are {keys}")
        values[key] = _checked(key, _same_type(value, known[key], f"settings file {path}, key '{key}'"), f"settings file {path}")
    return values


def _same_type(value: object, default: object, where: str) -> object:
    kind = type(default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if type(value) is not kind:
        found = _TYPES.get(type(value), "table or a list")
        raise InvalidConfig(f"{where}: {value!r} is a {found}", f"it must be a {_TYPES[kind]}, as {default!r}")
    return value


def _from_text(key: str, text: str, default: object, where: str) -> object:
    value: object = text
    if isinstance(default, tuple):
        value = tuple(item for item in text.split(":") if item)
    elif isinstance(default, bool):
        if text.lower() not in BOOLEANS:
            raise InvalidConfig(f"{where}: {text!r} is neither true nor false", f"it can be one of {', '.join(BOOLEANS)}")
        value = BOOLEANS[text.lower()]
    elif not isinstance(default, str):
        try:
            value = type(default)(text)  # type: ignore[call-arg]
        except ValueError as error:
            raise InvalidConfig(f"{where}: {text!r} is not a number", f"it must be as {default!r}") from error
    return _checked(key, value, where)


def _checked(key: str, value: object, where: str) -> object:
    """Return `value` if `key` can have it. Raises InvalidConfig naming both and `where` it stands."""
    if isinstance(value, tuple):
        if not value and key == "shared_dirs":
            raise InvalidConfig(
                f"{where}: 'shared_dirs' is empty", "to allow none, give a [[rule]] for all namespaces with 'directories = []'"
            )
        return tuple(_checked(key.removesuffix("s"), item, where) for item in value)
    reason = ""
    if key in _CHOICES and value not in _CHOICES[key]:
        reason = f"it can be one of {', '.join(_CHOICES[key])}"
    elif key.endswith("_listen") and value and not _is_address(str(value)):
        reason = "it must be HOST:PORT, with an IPv6 address as [ADDRESS]:PORT"
    elif key == "ovsdb" and not _is_remote(str(value)):
        reason = f"it must be unix:/PATH, with a path of at most {SUN_PATH_MAX} bytes, or tcp:IP:PORT"
    elif (key.endswith(_DIRECTORIES) or key in _FILES) and not is_path(value, empty=key in _MAY_BE_EMPTY):
        reason = "it must be an absolute path without '..'"
    elif key.endswith("dir") and value and not str(value).strip("/."):
        reason = "it must be a directory of its own"
    elif key == "short_dir" and len(os.fsencode(str(value))) > _SUN_PATH_SPARE:
        reason = f"socket paths below it have to fit 107 bytes: at most {_SUN_PATH_SPARE} for itself"
    elif key in _NAMES or key == "route_cluster_range":
        reason = _misnamed(key, str(value))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        reason = _out_of_range(key, value)
    if reason:
        raise InvalidConfig(f"{where}: '{key}' is {value!r}", reason)
    return normalized(str(value)) if value and key.endswith(_DIRECTORIES) else value


def _misnamed(key: str, text: str) -> str:
    """Why the text names nothing of its kind; "" if it can."""
    if key in _NAMES:
        return "" if re.fullmatch(_NAMES[key][0], text) else _NAMES[key][1]
    return "" if _is_network(text) else "it must be a network, as 10.96.0.0/12"


def _out_of_range(key: str, value: float) -> str:
    """Why the number cannot be the key's value; "" if it can."""
    if key in _COUNTS:
        return "" if 0 <= value <= _COUNTS[key] else f"it must be from 0 to {_COUNTS[key]}"
    if key in _RANGES:
        least, most = _RANGES[key]
        if key == "route_protocol" and value in _OTHERS_NUMBERS:
            return f"{value} is the number of the node's own routes"
        return "" if least <= value <= most else f"it must be from {least} to {most}"
    if key == "mtu":
        return "" if value == 0 or MTU_MIN <= value <= MTU_MAX else f"it must be 0 or from {MTU_MIN} to {MTU_MAX}"
    return "" if 0 < value < 1e6 else "it must be greater than 0 and less than a million"


def _is_network(text: str) -> bool:
    """Whether it is a network with the length of its prefix."""
    try:
        return "/" in text and ip_network(text) is not None
    except ValueError:
        return False


def _is_address(text: str) -> bool:
    """Whether it is HOST:PORT that can be listened on."""
    return bool(re.fullmatch(_ADDRESS, text)) and 0 < int(text.rpartition(":")[2]) < 1 << 16


def _is_remote(text: str) -> bool:
    """Whether it is a remote of OVSDB. The OVS library gives no clear error for a path or port that no socket can have."""
    scheme, _, rest = text.partition(":")
    if scheme == "unix":
        return rest.startswith("/") and "\0" not in rest and len(os.fsencode(rest)) <= SUN_PATH_MAX
    return scheme == "tcp" and _is_address(rest)

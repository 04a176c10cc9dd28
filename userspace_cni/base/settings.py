"""The settings of a node's administrator: one table, from TOML files and the environment.

The environment overrides the node's file, that the cluster's, and that the defaults, key by key. An unknown key or a value of the
wrong type is an error that names file (or variable), key and value: a typo must never silently become a default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from userspace_cni.base import port_kinds
from userspace_cni.base.errors import PASSING, InvalidConfig, Unavailable, Undecodable
from userspace_cni.base.gateways import LINK_NAME, Gateway, read_gateways
from userspace_cni.base.log import FORMATS, LEVELS
from userspace_cni.base.logical_ports import NAMINGS
from userspace_cni.base.mirrors import NodeMirror, read_node_mirrors
from userspace_cni.base.misspelt import did_you_mean
from userspace_cni.base.provider_networks import ProviderNetwork, read_provider_networks
from userspace_cni.base.setting_forms import (
    ANYTHING,
    COLLECTOR,
    FILE,
    LISTENED,
    NETWORK,
    POSITIVE,
    REMOTE,
    REMOTES,
    SettingForm,
    between,
    directory,
    matching,
    one_of,
)
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
)

_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
TABLES_OF_FILE: Final[Mapping[str, tuple[str, Callable[[object, str], object]]]] = {
    "rule": ("rules", read_rules),
    "mirror": ("mirrors", read_node_mirrors),
    "gateway": ("gateways", read_gateways),
    "provider_network": ("provider_networks", read_provider_networks),
}
"""The arrays of tables of the file, each with the field that holds it, which no key of the same name sets, and its reader."""
_SETTING: Final = "setting"
T = TypeVar("T")
_TYPES: Final[Mapping[type, str]] = {
    str: "string", int: "whole number", float: "number", bool: "boolean", tuple: "list of strings"
}  # fmt: skip
_MANY: Final = 1000
"""The most of what is counted. The kubelet takes messages of 4 MiB, which hold many more devices; a node has fewer pods."""
_OTHERS_NUMBERS: Final = {149: "149 is the number of the node's own routes"}
MTU_MIN: Final = 68
"""IPv4's (RFC 791)."""
MTU_MAX: Final = 65535
_SUN_PATH_SPARE = 60
"""short_dir, "/", a pod UID (36) and "/<cid12>-<ifname>" (29) have to fit 107 bytes; 60 leaves room for a usual ifname."""


@dataclass(frozen=True)
class Setting:
    """What is known of a setting beside its default, whose type it has. `help`: one line.

    `form`: what it can be, each item of a list; `least`: how many items that has at least. `own`: its variable of the
    environment, empty for the usual name; `fallback`: one that says it where neither that nor a file does. `since`: the first
    release that reads it.
    """

    help: str
    form: SettingForm = ANYTHING
    own: str = ""
    fallback: str = ""
    least: int = 0
    since: str = "0.1.0"


def _setting(default: T, text: str, form: SettingForm = ANYTHING, *, own: str = "", fallback: str = "", least: int = 0) -> T:
    return field(default=default, metadata={_SETTING: Setting(text, form, own, fallback, least)})


@dataclass(frozen=True)
class Settings:
    """The settings of docs/settings.md, by their TOML keys: the one table of them, for reading and for `schema settings`."""

    ovsdb: str = _setting("unix:/var/run/openvswitch/db.sock", "OVSDB's remote: `unix:PATH` or `tcp:IP:PORT`", REMOTE)
    ovs_rundir: str = _setting(
        "/var/run/openvswitch",
        "where ovs-vswitchd's pid file, control socket and bridge management sockets are",
        directory(),
        own="OVS_RUNDIR",
    )
    ovs_sockdir: str = _setting(
        "", "where OVS makes server-mode sockets; empty asks the switch", directory(empty=True), own="OVS_SOCKDIR"
    )
    switch_netns: str = _setting(
        "", "path of the network namespace in which ovs-vswitchd opens its ports; empty for that of this process", FILE
    )
    kernel_port: str = _setting(
        port_kinds.AUTO,
        "how OVS opens the host end of a kernel link, if the network does not say",
        one_of(port_kinds.CHOICES),
    )
    afxdp_max: int = _setting(
        16, "how many ports of type afxdp the switch may have: ovs-vswitchd takes 76 MiB of memory for each", between(0, _MANY)
    )
    mtu: int = _setting(
        0,
        "MTU of kernel links whose network gives none; 0 for that of mtu_file, else 1500",
        between(MTU_MIN, MTU_MAX, none=True),
    )
    mtu_file: str = _setting("", "a file of the node with the MTU instead, in openshift-sdn's form; empty for none", FILE)
    kubeovn_annotations: bool = _setting(
        False, "whether the pods' annotations of kube-ovn (ovn.kubernetes.io/…) and of OVN's tools (ovn) decide about interfaces"
    )
    gateway_bridge: str = _setting(
        "",
        "the bridge on which the node gets the port that kube-ovn's annotations of it describe; empty for none",
        matching(rf"({LINK_NAME})?", f"it must be empty or match {LINK_NAME}"),
    )
    ovn_nb: str = _setting(
        "", "OVN's northbound database; empty for what external_ids:ovn-nb of the switch says, or the usual socket", REMOTES
    )
    ovn_sb: str = _setting(
        "",
        "OVN's southbound database; empty for what external_ids:ovn-remote of the switch says, or the usual socket",
        REMOTES,
    )
    ovn_private_key: str = _setting("", "our private key for OVN's databases at `ssl:` addresses", FILE)
    ovn_certificate: str = _setting("", "the certificate of `ovn_private_key`", FILE)
    ovn_ca_cert: str = _setting("", "the certificate of the authority that signed those of OVN's databases", FILE)
    ovn_bridge: str = _setting(
        "br-int",
        "OVN's integration bridge, which ovn-controller makes: networks with 'ovn' have their ports there, others do not",
        matching(LINK_NAME, f"it must match {LINK_NAME}"),
    )
    ovn_naming: str = _setting(
        NAMINGS[0],
        "how OVN's logical ports are called: <namespace>_<pod>, or as kube-ovn has it <pod>.<namespace>",
        one_of(NAMINGS),
    )
    ovn_default_network: bool = _setting(
        True,
        "whether the cluster's default network is OVN's: each pod's `eth0` has a logical port; else only interfaces of networks "
        "with `ovn` have one",
    )
    ovn_default_limits: str = _setting(
        "node",
        "who limits `eth0` of pods where that is OVN's: the node's switch, or OVN by rows that the controller writes; as key "
        "`ovn.limits` of the default network's configuration, which the controller cannot see",
        one_of(("node", "ovn")),
    )
    ovn_pod_ports: int = _setting(
        8,
        "how many logical ports the controller makes for one pod: each takes an address of its switch",
        between(1, 64),
    )
    ovn_services: bool = _setting(
        True,
        "whether the controller that keeps logical ports also writes load balancers of OVN for the cluster's Services",
    )
    ovn_policies: bool = _setting(
        True,
        "whether the controller that keeps logical ports also writes the cluster's NetworkPolicies into OVN",
    )
    policy_fragments: str = _setting(
        "refuse",
        "what becomes, before OVN 26.03, of IP fragments of requests that a policy lets through to some ports: `refuse` them, or "
        "`allow` them to all ports",
        one_of(("refuse", "allow")),
    )
    ovn_rundir: str = _setting(
        "/var/run/ovn",
        "where ovn-controller's control socket is, which is asked why a logical port is not installed",
        directory(),
    )
    ovn_recompute_s: float = _setting(
        0.0,
        "seconds after which the agent has ovn-controller recompute all its flows, again and again; 0 for never",
        between(1, 86_400, none=True),
    )
    ovn_gateway_bridge: str = _setting(
        "",
        "the bridge that this node shares with OVN's gateway router, one MAC and one address for both; empty for none",
        matching(rf"({LINK_NAME})?", f"it must be empty or match {LINK_NAME}"),
    )
    ovn_gateway_interface: str = _setting(
        "",
        "the NIC of `ovn_gateway_bridge`; empty for its only one",
        matching(r"[-\w.:@]{0,64}", "it must be empty or the name of an interface of Open vSwitch"),
    )
    ovn_gateway_patch: str = _setting(
        "",
        "the patch port of `ovn_gateway_bridge` to OVN's bridge, where another program has made one; empty for a pair of our own",
        matching(r"[-\w.:@]{0,128}", "it must be empty or the name of a port of Open vSwitch"),
    )
    ovn_conntrack_zone: int = _setting(
        64000,
        "the zone of connection tracking for `ovn_gateway_bridge`, which no other program uses there",
        between(1, 65535),
    )
    network_objects: bool = _setting(
        False, "whether objects of the API (ProviderNetwork, Vlan, Subnet of userspace-cni.io) describe this node's network"
    )
    routes: bool = _setting(False, "whether routes in pods follow Route objects (k8s.ovn.org) and `routes_file`")
    route_protocol: int = _setting(
        148,
        "the protocol number of the routes that Routes make (rtm_protocol)",
        between(5, 255, never=_OTHERS_NUMBERS),
    )
    route_metric6: int = _setting(
        100, "the metric of the IPv6 routes that Routes make, lower than that of other routes", between(1, 1023)
    )
    route_exclude_namespaces: tuple[str, ...] = _setting(
        ("kube-system",), "namespaces to whose pods a Route applies only if it names them"
    )
    route_cluster_ranges: tuple[str, ...] = _setting(
        (),
        "networks of the cluster's Services and pods, which stay with the CNI's default route when a Route replaces that",
        NETWORK,
    )
    routes_file: str = _setting("", "a file with routes, beside the objects of the API; empty for none", FILE)
    cni_conf_file: str = _setting(
        "",
        "a network (*.conflist) that the agent installs for runtimes, by its path in the agent's own root; empty for none",
        FILE,
    )
    cni_conf_dir: str = _setting(
        "/etc/cni/net.d", "the runtimes' directory of networks, where `cni_conf_file` is put", directory()
    )
    cni_cache_dir: str = _setting("/var/lib/cni", "libcni's cache of sandboxes", directory())
    cri_socket: str = _setting(
        "/run/containerd/containerd.sock",
        "the container runtime's socket, for pods that are found nowhere else; empty for none",
        FILE,
    )
    state_dir: str = _setting(STATE_DIR, "records. Must survive a reboot", directory())
    run_dir: str = _setting(RUN_DIR, "locks, and the agent's socket", directory())
    socket: str = _setting("", "the agent's socket; empty for <run_dir>/agent.sock", FILE)
    hand_over: bool = _setting(True, "whether the plugin as a process hands its calls to an agent of the same directories")
    legacy_state_dir: str = _setting("/var/lib/cni/usrspcni/data", "records of the former plugin", directory())
    short_dir: str = _setting(
        "/var/lib/vhost_sockets", "where pod directories are mounted for OVS", directory(longest=_SUN_PATH_SPARE)
    )
    mount_pod_dirs: str = _setting(
        "always",
        "`always`, or `long`: only those whose socket path is over 107 bytes, for a switch that does not see short_dir",
        one_of(("always", "long")),
    )
    default_shared_dir: str = _setting(
        "/usr/local/var/run/openvswitch", "base of the socket directory of a pod that has none", directory()
    )
    kubelet_dir: str = _setting("/var/lib/kubelet", "Kubelet's root directory", directory())
    shared_volume: str = _setting(
        "shared-dir",
        "name of the pod volume that takes the sockets",
        matching(_LABEL, "it must be a volume name (RFC 1123 label)"),
    )
    require_volume: bool = _setting(
        True, "whether ADD refuses a pod whose known spec has no place for its socket; false: ADD warns"
    )
    node_name: str = _setting("", "this node's name in the API; empty for the host name", fallback="NODE_NAME")
    kubeconfig: str = _setting(
        "", "credentials of our own for the API server; empty for the pod's service account, if this process runs in a pod", FILE
    )
    netconf_kubeconfig: str = _setting(
        "fallback",
        "whether a network's own `kubeconfig` is used: `never`, `fallback` (unless this process has its own), `always`",
        one_of(("never", "fallback", "always")),
    )
    kubeconfig_dirs: tuple[str, ...] = _setting(
        ("/etc/cni", "/etc/kubernetes"), "directories below which a network's `kubeconfig` must lie", directory()
    )
    kubeconfig_exec: bool = _setting(False, "whether a kubeconfig that a network names may run programs (exec plugins), as root")
    shared_dirs: tuple[str, ...] = _setting(
        (), "directories below which `sharedDir` of a pod's network must lie; without it the usual ones", directory(), least=1
    )
    devices_per_bridge: int = _setting(
        0, "how many devices of each bridge the kubelet is offered; 0 for no device plugin", between(0, _MANY)
    )
    ports_per_bridge: int = _setting(
        64, "with `dra`: how many ports claims and devices may have together on each bridge", between(1, _MANY)
    )
    dra: bool = _setting(
        False, "whether the agent is a driver of devices (DRA): offers bridges in ResourceSlices, and prepares claims"
    )
    cdi_dir: str = _setting(
        "/var/run/cdi", "the runtimes' directory of CDI files, where those of claims are written", directory()
    )
    device_info_dir: str = _setting(
        "/var/run/k8s.cni.cncf.io/devinfo", "the directory below which device-info files are read and written", directory()
    )
    host_root: str = _setting("/", "where an agent in a container sees the host's root", directory(root=True))
    tick_s: float = _setting(30.0, "seconds between two reconciliations of the agent", POSITIVE)
    deadline_s: float = _setting(30.0, "seconds that one verb may take", POSITIVE)
    waiting_per_namespace: int = _setting(
        16,
        "how many ADDs of the pods of one namespace may wait for addresses in their pods' annotations, in the agent",
        between(0, _MANY),
    )
    spool_max: int = _setting(1024, "DELs that are kept while the agent is away", POSITIVE)
    metrics_listen: str = _setting("", "`host:port` for metrics over TCP; empty for none", LISTENED)
    health_listen: str = _setting("", "`host:port` for /healthz and /readyz over TCP; empty for none", LISTENED)
    otlp_endpoint: str = _setting(
        "",
        "the OpenTelemetry collector that the agent sends traces of its calls to, by OTLP over HTTP; empty for none",
        COLLECTOR,
    )
    controller_namespace: str = _setting(
        "userspace-cni",
        "where the controllers have their Lease: a namespace of the API",
        matching(_LABEL, "it must be the name of a namespace (RFC 1123 label)"),
        fallback="POD_NAMESPACE",
    )
    log_level: str = _setting("info", "the least important level that is logged", one_of(tuple(LEVELS)))
    log_format: str = _setting("text", "how lines of the log are written", one_of(FORMATS))
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
    for key, (default, _) in TABLE.items():
        if name := find_variable(key, environ):
            values[key] = _from_text(key, environ[name], default, f"environment variable {name}")
    return Settings(**values)


def find_variable(key: str, environ: Mapping[str, str]) -> str:
    """The variable that decides about a setting; "" where none does."""
    return next((name for name in variables_of(key) if environ.get(name)), "")


def variables_of(key: str) -> list[str]:
    """The variables that a setting can have, of which the first one counts."""
    setting = TABLE[key][1]
    return [name for name in (setting.own or PREFIX + key.upper(), setting.fallback) if name]


def _from_file(path: str, *, required: bool) -> dict[str, Any]:
    raw, _ = parse_file(path, required=required)
    return dict(read_key(key, value, path) for key, value in raw.items())


def parse_file(path: str, *, required: bool) -> tuple[dict[str, Any], str]:
    """What a settings file has, by key, and its text; nothing if it may be absent and is. Raises as `load` does."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_MAX + 1)
    except FileNotFoundError as error:
        if required:
            raise InvalidConfig(f"settings file {path} is absent", f"{PREFIX}CONFIG names it") from error
        return {}, ""
    except OSError as error:
        wrong = Unavailable if error.errno in PASSING else Undecodable
        raise wrong(f"reading settings file {path}: {error.strerror}", "the plugin runs as root") from error
    if len(content) > FILE_MAX:  # rules beyond it would have no effect
        raise Undecodable(f"settings file {path} is too long", f"at most {FILE_MAX} bytes are read")
    import tomllib

    try:
        text = content.decode("utf-8")
        return tomllib.loads(text), text
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"settings file {path} is not TOML", str(error)) from error


def read_key(key: str, value: object, path: str) -> tuple[str, Any]:
    """The field of Settings that a key of a file sets, and its value. Raises InvalidConfig."""
    where = f"settings file {path}"
    if key in TABLES_OF_FILE:
        name, read = TABLES_OF_FILE[key]
        return name, read(value, where)
    if key not in TABLE:
        keys = [*TABLE, *TABLES_OF_FILE]
        raise InvalidConfig(f"{where}: unknown key '{key}' = {value!r}", did_you_mean(key, keys) or f"keys are {', '.join(keys)}")
    return key, _checked(key, _same_type(value, TABLE[key][0], f"{where}, key '{key}'"), where)


def _same_type(value: object, default: object, where: str) -> object:
    kind = type(default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if type(value) is not kind:
        found = _TYPES.get(type(value), "table or a list")
        raise InvalidConfig(f"{where}: {value!r} is a {found}", f"it must be a {_TYPES[kind]}, such as {default!r}")
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
            raise InvalidConfig(f"{where}: {text!r} is not a number", f"it must look like {default!r}") from error
    return _checked(key, value, where)


def _checked(key: str, value: object, where: str, name: str = "") -> object:
    """Return `value` if `key`, which errors call `name`, can have it. Raises InvalidConfig naming both and `where` it stands."""
    if isinstance(value, tuple):
        if len(value) < TABLE[key][1].least:
            raise InvalidConfig(
                f"{where}: '{key}' is empty", "to allow none, give a [[rule]] for all namespaces with 'directories = []'"
            )
        return tuple(_checked(key, item, where, key.removesuffix("s")) for item in value)
    form = TABLE[key][1].form
    if reason := form.wrong(value):
        raise InvalidConfig(f"{where}: '{name or key}' is {value!r}", reason)
    return form.normal(value)


TABLE: Final[Mapping[str, tuple[Any, Setting]]] = {
    item.name: (item.default, item.metadata[_SETTING]) for item in fields(Settings) if _SETTING in item.metadata
}
"""Default and what is known of each setting, by its key; those of tables are `TABLES_OF_FILE`."""

"""Our own options: what existing manifests mean, what is refused, and what only causes a warning."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.node.configurations import read as options
from userspace_cni.base.errors import BadEnvironment, InvalidConfig, Undecodable, UnsupportedField, UserspaceError


def host(**keys: Any) -> dict[str, Any]:
    """A host block as in upstream's examples."""
    return {"engine": "ovs-dpdk", "iftype": "vhostuser", "netType": "bridge", "vhost": {"mode": "client"}, **keys}


def test_nothing_given() -> None:
    """A network without a host block is a client port on br0."""
    read = options()
    assert (read.ovs_role, read.bridge, read.vlan.tag, read.mtu) == ("client", "br0", None, None)


@pytest.mark.parametrize("vhost", [{}, {"mode": "server"}, {"mode": ""}, {"mode": None}])
def test_without_a_mode_ovs_is_the_server(vhost: dict[str, str]) -> None:
    """With a host block, mode 'server' or none makes OVS the server, and a warning says what that costs."""
    warnings: list[str] = []
    assert options(warnings, host=host(vhost=vhost)).ovs_role == "server"
    assert any("deprecated" in warning for warning in warnings)


def test_keys_match_in_any_case() -> None:
    """Keys are matched without regard to case, in blocks and at the top."""
    block = {"Engine": "ovs-dpdk", "VHOST": {"Mode": "client", "SocketFile": "s"}, "bridge": {"bridgename": "b1", "VLANID": 7}}
    read = options(Host=block, SHAREDDIR="/x", LogLevel="debug")
    assert (read.ovs_role, read.socket_file, read.bridge, read.vlan.tag, read.shared_dir) == ("client", "s", "b1", 7, "/x")


def test_no_key_is_spelled_with_other_letters() -> None:
    """The Kelvin sign is no "k" in a key, although its small letter is: a policy that searches the key would not find it."""
    keys: dict[str, Any] = {"\u212aubeconfig": "/etc/cni/x"}
    with pytest.raises(InvalidConfig, match="key '\u212aubeconfig' is unknown: 'kubeconfig' is probably meant"):
        options(**keys)


def test_one_key_in_two_spellings() -> None:
    """The same key in two spellings cannot be meant."""
    with pytest.raises(InvalidConfig, match="two spellings"):
        options(host={"mtu": 1500, "MTU": 9000})


def test_unknown_keys_are_warned_of() -> None:
    """Unknown keys in a block, and at the top, are named on stderr and otherwise ignored."""
    warnings: list[str] = []
    options(warnings, host=host(shiny=1, vhost={"mode": "client", "zip": 2}), container={"other": 1}, nonsense=3)
    assert [
        name for name in ("host.shiny", "host.vhost.zip", "container.other", "nonsense") if f"'{name}'" not in str(warnings)
    ] == []


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"host": {"engine": "vpp"}}, "'host.engine' is 'vpp'"),
        ({"host": {"iftype": "memif"}}, "'host.iftype' is 'memif'"),
        ({"container": {"iftype": "memif"}}, "'container.iftype' is 'memif'"),
        ({"host": {"netType": "interface"}}, "'host.netType' is 'interface'"),
        ({"host": {"Bandwidth": {"egressRate": 1}}}, "'host.bandwidth' is {'egressRate': 1}"),
        ({"container": {"bandwidth": {"egressRate": 1}}}, "'container.bandwidth' is {'egressRate': 1}"),
        ({"ipMasq": True}, "'ipMasq' is true"),
        ({"ipam": {"type": "dhcp"}}, "'ipam.type' is 'dhcp'"),
    ],
)
def test_not_built_yet(keys: dict[str, Any], named: str) -> None:
    """What is understood but cannot be served is refused with 2, which names key and value."""
    with pytest.raises(UnsupportedField) as refused:
        options(**keys)
    assert refused.value.code == 2
    assert named in refused.value.message


def test_container_engine_is_the_applications_own() -> None:
    """A pod that runs VPP on a vhost-user socket says so in its container block, which is only passed on."""
    assert options(container={"engine": "vpp", "iftype": "vhostuser"}).application.block["engine"] == "vpp"


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"host": []}, Undecodable),
        ({"host": {"mtu": "1500"}}, Undecodable),
        ({"host": {"mtu": True}}, Undecodable),
        ({"container": {"memif": "text"}}, Undecodable),
        ({"container": {"memif": [["role", "master"]]}}, Undecodable),
        ({"host": {"mtu": 1}}, InvalidConfig),
        ({"host": {"engine": "snabb"}}, InvalidConfig),
        ({"host": {"vhost": {"mode": "srver"}}}, InvalidConfig),
        ({"host": {"vhost": {"mode": "Client"}}}, InvalidConfig),
        ({"host": {"vhost": {"mode": 1}}}, Undecodable),
        ({"consumer": "kubevirt", "host": {"vhost": {"mode": 1}}}, Undecodable),
        ({"container": {"vhost": {"mode": "clinet"}}}, InvalidConfig),
        ({"host": {"vhost": {"socketfile": "../x"}}}, InvalidConfig),
        ({"host": {"vhost": {"socketfile": "-x"}}}, InvalidConfig),
        ({"host": {"vhost": {"socketfile": "a,b"}}}, InvalidConfig),
        ({"host": {"vhost": {"socketfile": "x" * 81}}}, InvalidConfig),
        ({"host": {"vhost": {"dirmode": "999"}}}, InvalidConfig),
        ({"host": {"vhost": {"dirmode": 755}}}, Undecodable),
        ({"host": {"vhost": {"group": "a b"}}}, InvalidConfig),
        ({"host": {"bridge": {"bridgeName": "-br"}}}, InvalidConfig),
        ({"host": {"bridge": {"bridgeName": "x" * 16}}}, InvalidConfig),
        ({"host": {"bridge": {"vlanId": 4095}}}, InvalidConfig),
        ({"host": {"bridge": {"vlanMode": "q"}}}, InvalidConfig),
        ({"host": {"bridge": {"trunks": [5000]}}}, InvalidConfig),
        ({"host": {"bridge": {"trunks": ["9-5"]}}}, InvalidConfig),
        ({"host": {"bridge": {"trunks": [None]}}}, InvalidConfig),
        ({"host": {"bridge": {"trunks": [5], "vlanMode": "access"}}}, InvalidConfig),
        ({"host": {"vhost": {"socketfile": "configData-x.json"}}}, InvalidConfig),
        ({"host": {"mac": "01:00:00:00:00:01"}}, InvalidConfig),
        ({"runtimeConfig": {"mac": "zz"}}, InvalidConfig),
        ({"runtimeConfig": {"mac": 1}}, Undecodable),
        ({"runtimeConfig": {"ips": ["10.0.0.1/24"]}}, InvalidConfig),
        ({"runtimeConfig": {"ips": ["ten"]}, "ipam": {"type": "static"}}, InvalidConfig),
        ({"runtimeConfig": {"CNIDeviceInfoFile": "x"}}, InvalidConfig),
        ({"container": {"vhost": {"queues": 0}}}, InvalidConfig),
        ({"container": {"vhost": {"queueSize": 100}}}, InvalidConfig),
        ({"consumer": "xen"}, InvalidConfig),
        ({"kubeconfig": "relative"}, InvalidConfig),
        ({"sharedDir": "/a/../b"}, InvalidConfig),
        ({"sharedDir": "/a" * 513}, InvalidConfig),
    ],
)
def test_malformed_options(keys: dict[str, Any], kind: type[UserspaceError]) -> None:
    """A value of the wrong type is 6, an invalid one 7."""
    with pytest.raises(kind) as refused:
        options(**keys)
    assert refused.value.code == kind.default_code


def test_queues_of_the_host() -> None:
    """Queues on OVS's side, and an invalid log level, are ignored with a warning."""
    warnings: list[str] = []
    options(warnings, host=host(vhost={"mode": "client", "queues": 4}), logLevel="loud")
    assert [name for name in ("host.vhost.queues", "'loud'") if name not in str(warnings)] == []


def test_trunks_in_every_spelling() -> None:
    """Trunks are numbers, ranges as text, and ovs-cni's objects."""
    bridge = {"trunks": [5, "7-9", "11", {"id": 20}, {"minID": 30, "maxID": 31}]}
    assert options(host=host(bridge=bridge)).vlan.trunks == (5, 7, 8, 9, 11, 20, 30, 31)


MAC = {name: f"02:00:00:00:00:{number:02x}" for number, name in enumerate(("runtime", "args", "environment", "host"), 1)}


@pytest.mark.parametrize(("present", "expected"), [(4, "runtime"), (3, "args"), (2, "environment"), (1, "host")])
def test_mac_precedence(present: int, expected: str) -> None:
    """A MAC comes from runtimeConfig, else args.cni, else CNI_ARGS, else the network."""
    sources: list[dict[str, Any]] = [
        {"host": host(mac=MAC["host"])},
        {},
        {"args": {"cni": {"mac": MAC["args"]}}},
        {"runtimeConfig": {"mac": MAC["runtime"]}},
    ]
    keys = {key: value for source in sources[:present] for key, value in source.items()}
    assert options(cni_args=f"MAC={MAC['environment']}" if present > 1 else "", **keys).asked.mac == MAC[expected]


def test_bad_mac_in_the_environment() -> None:
    """A malformed MAC of CNI_ARGS is refused with 4."""
    with pytest.raises(BadEnvironment, match="MAC"):
        options(cni_args="MAC=nonsense")


@pytest.mark.parametrize("args", ["x", {"cni": []}, {"cni": None}, {"cni": {"mac": ""}}, {"other": {"mac": "x"}}])
def test_args_that_say_nothing(args: object) -> None:
    """`args` without an object `cni`, or without a MAC in it, leave the MAC to CNI_ARGS."""
    assert options(cni_args="MAC=02:00:00:00:00:01", args=args).asked.mac == "02:00:00:00:00:01"


def test_log_file_is_refused_politely() -> None:
    """A log file that a network names is not written to, and a warning says so."""
    warnings: list[str] = []
    options(warnings, logFile="/etc/passwd")
    assert any("logFile" in warning for warning in warnings)


@pytest.mark.parametrize("keys", [{}, {"host": {}}, {"host": {"mtu": 9000}}, {"host": host(vhost={"mode": "client"})}])
def test_a_vm_is_always_the_server(keys: dict[str, Any]) -> None:
    """With `consumer: kubevirt` OVS is the client, also where a host block names no mode, and nothing is deprecated about it."""
    warnings: list[str] = []
    read = options(warnings, consumer="kubevirt", **keys)
    assert (read.ovs_role, read.consumer, warnings) == ("client", "kubevirt", [])


@pytest.mark.parametrize(
    ("vhost", "named"),
    [
        ({"mode": "server"}, "host.vhost.mode"),
        ({"mode": "client", "socketfile": "vhost.sock"}, "host.vhost.socketfile"),
        ({"socketfile": "vhost.sock"}, "host.vhost.socketfile"),
    ],
)
def test_what_a_vm_can_not_have(vhost: dict[str, str], named: str) -> None:
    """A server-mode port and a socket of another name are refused with 7 for a VM, with what to do; a pod may have both."""
    with pytest.raises(InvalidConfig, match=f"{named}.*consumer 'kubevirt'") as refused:
        options(consumer="kubevirt", host=host(vhost=vhost))
    assert refused.value.code == 7
    assert refused.value.details
    options(consumer="pod", host=host(vhost=vhost))


def test_a_vms_directory_is_qemus() -> None:
    """User, group and mode are QEMU's unless the network says otherwise; those of a pod's directory are left as they are."""
    access = options(consumer="kubevirt").access
    assert (access.user, access.group, access.directory_mode, access.socket_mode) == ("107", "107", 0o755, None)
    access = options(consumer="kubevirt", host=host(vhost={"user": 0, "group": "ovs", "dirmode": "0770"})).access
    assert (access.user, access.group, access.directory_mode) == ("0", "ovs", 0o770)
    access = options(consumer="pod").access
    assert (access.user, access.group, access.directory_mode) == ("", "", None)


def test_shared_dir_is_not_for_a_vm() -> None:
    """`sharedDir` cannot move a VM's socket, and a warning says where it is."""
    warnings: list[str] = []
    options(warnings, consumer="kubevirt", sharedDir="/x")
    assert len(warnings) == 1
    assert "sharedDir" in warnings[0]
    assert "emptyDir 'public'" in warnings[0]


def test_the_mode_of_a_vms_socket_is_ignored() -> None:
    """QEMU makes the socket, and a warning says so."""
    warnings: list[str] = []
    options(warnings, consumer="kubevirt", host={"vhost": {"socketmode": "0660"}})
    assert len(warnings) == 1
    assert "socketmode" in warnings[0]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"ipam": {"type": "static", "routes": [{}] * 1025}}, "key 'ipam.routes' has 1025 items"),
        ({"ipam": {"type": "static", "addresses": [{}] * 65}}, "key 'ipam.addresses' has 65 items"),
        ({"ipam": {"type": "host-local", "ranges": [[]] * 65}}, "key 'ipam.ranges' has 65 items"),
        ({"runtimeConfig": {"ips": ["192.0.2.7/24"] * 65}, "ipam": {"type": "static"}}, "key 'runtimeConfig.ips' has 65 items"),
    ],
)
def test_more_than_an_interface_has(keys: dict[str, Any], named: str) -> None:
    """Lists that become addresses and routes are refused by length, with 7, before the IPAM plugin is run."""
    with pytest.raises(InvalidConfig) as refused:
        options([], **keys)
    assert refused.value.code == 7
    assert refused.value.message == named


def test_unknown_keys_of_several_blocks() -> None:
    """Ten unknown keys of a network are named, wherever they are, and how many more there are."""
    warnings: list[str] = []
    unknown: dict[str, Any] = {f"key{number}": 1 for number in range(6)}
    options(warnings, host={**unknown, "bridge": {**unknown, "bridgeName": "br0"}}, **unknown)
    told = [text for text in warnings if "unknown" in text]
    assert len(told) == 11
    assert told[-1] == "8 more keys beside 'key0' are unknown and ignored"


@pytest.mark.parametrize("key", ["host", "container", "bandwidth", "netem"])
def test_a_list_in_the_place_of_a_block(key: str) -> None:
    """It is refused by its type, and the error names no element of it."""
    warnings: list[str] = []
    keys: dict[str, Any] = {key: [{"colour": 1}] * 1000}
    with pytest.raises(Undecodable, match=f"key '{key}' is a list"):
        options(warnings, **keys)
    assert warnings == []


def test_more_mirrors_than_an_interface_can_be_in() -> None:
    """They are refused by their number, and the error names no key of one."""
    warnings: list[str] = []
    with pytest.raises(InvalidConfig, match="key 'mirrors' has 1000 items"):
        options(warnings, mirrors=[{"colour": 1}] * 1000)
    assert warnings == []


def test_more_unknown_keys_than_are_named() -> None:
    """A network may have any number of unknown keys: the first are named, with the number of the others."""
    warnings: list[str] = []
    options(warnings, host={f"key{number}": 1 for number in range(1000)})
    unknown = [text for text in warnings if "unknown" in text]
    assert unknown[0] == "key 'host.key0' is unknown and ignored"
    assert unknown[-1] == "990 more keys beside 'host.key0' are unknown and ignored"
    assert len(unknown) == 11

"""Items 27 to 37 of the specification's checklist: the configuration on stdin, and its version."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cni.spec import SUPPORTED, ipam, refused, scripted, succeeded, switch_of, without
from tests.lab.node.node import CONTAINER, Node
from tests.lab.runtimes.runtime import call

MAC = "02:00:00:00:00:07"


def test_027_wrong_types(bare_node: Node) -> None:
    """Input that is no JSON object, or whose name, version or ipam has the wrong type, is 6."""
    network = bare_node.network()
    wrong: list[Any] = [[network], "net", 7, {**network, "name": 3}, {**network, "name": ["net"]}, {**network, "name": {}}]
    wrong += [{**network, "cniVersion": 1}, {**network, "cniVersion": 1.1}, {**network, "cniVersion": True}]
    wrong += [{**network, "ipam": "host-local"}, {**network, "ipam": {"type": 1}}]
    for stdin in wrong:
        refused(bare_node.run("DEL", stdin), 6)
    for verb in ("ADD", "CHECK", "GC", "STATUS"):
        refused(bare_node.run(verb, wrong[0], "/absent"), 6)
    assert not bare_node.state.exists()


def test_028_network_name(bare_node: Node) -> None:
    """A network's name that is missing, or does not look like a container ID over its whole length, is 7."""
    network = bare_node.network()
    bad: list[Any] = ["", None, "a/b", "-a", ".a", "a\n", "a b", "é"]
    for stdin in [without(network, "name"), *({**network, "name": name} for name in bad)]:
        refused(bare_node.run("DEL", stdin), 7, "name")
    for verb in ("ADD", "CHECK", "GC", "STATUS"):
        refused(bare_node.run(verb, {**network, "name": "a/b"}, "/absent"), 7, "name")
    assert not bare_node.state.exists()
    for good in ("a", "0", "a.b_c-1", "n" * 100):
        succeeded(bare_node.run("DEL", {**network, "name": good}))


def test_029_no_version_is_0_1_0(bare_node: Node) -> None:
    """A missing or empty cniVersion means 0.1.0, which is refused with 1 naming it and what is supported."""
    network = bare_node.network()
    for stdin in (without(network, "cniVersion"), {**network, "cniVersion": ""}):
        for verb in ("ADD", "DEL", "CHECK", "STATUS"):
            refused(bare_node.run(verb, stdin, "/absent"), 1, "0.1.0", *SUPPORTED)


def test_030_versions_that_are_not_supported(bare_node: Node) -> None:
    """A version that is not exactly one of ours is 1. Text that is no version is 1 for ADD and DEL, and 6 for the others."""
    network = bare_node.network()
    for version in ("9.9.9", "0.1.0", "0.2.0", "0.3.2", "1.1.1", "1.1", "1"):
        for verb in ("ADD", "DEL", "STATUS"):
            refused(bare_node.run(verb, {**network, "cniVersion": version}, "/absent"), 1, version, *SUPPORTED)
    for version in ("junk", "v1.1.0", "1.1.0\n", "1.01.0"):
        for verb, code in (("ADD", 1), ("DEL", 1), ("CHECK", 6), ("GC", 6), ("STATUS", 6)):
            refused(bare_node.run(verb, {**network, "cniVersion": version}, "/absent"), code)
    assert not bare_node.state.exists()


def test_031_verbs_that_came_later(bare_node: Node) -> None:
    """CHECK below 0.4.0, and GC and STATUS below 1.1.0, are 1, which names the version that they need."""
    since = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
    for verb, first in since.items():
        for version in SUPPORTED[: SUPPORTED.index(first)]:
            refused(bare_node.run(verb, bare_node.network(version), "/absent"), 1, verb, first, version)


def test_032_order_of_validation(bare_node: Node, sandbox: str) -> None:
    """A call in which everything is wrong reports command, environment, stdin,
    JSON, name, version, namespace and options in turn.
    """
    delegate = scripted(bare_node)
    plugin = bare_node.plugin
    environ = bare_node.variables("nope", "/absent", container="", ifname="/", CNI_ARGS="x")
    closed = ["/bin/sh", "-c", f'exec "{plugin}" <&-']
    refused(call(closed, None, environ), 4, "CNI_COMMAND")
    environ |= {"CNI_COMMAND": "ADD"}
    refused(call(closed, None, environ), 4, "CNI_CONTAINERID")
    environ |= {"CNI_CONTAINERID": "c1"}
    refused(call(closed, None, environ), 4, "CNI_IFNAME")
    environ |= {"CNI_IFNAME": "net1"}
    refused(call(closed, None, environ), 4, "CNI_ARGS")
    environ |= {"CNI_ARGS": ""}
    refused(call(closed, None, environ), 5)
    network: dict[str, Any] = {"name": "/", "cniVersion": "7", "ipam": {"type": "none"}, "host": {"iftype": "memif"}}
    refused(call(plugin, None, environ, b"{" + json.dumps(network).encode()), 6)
    refused(call(plugin, None, environ, json.dumps(network).encode()), 7, "name")
    network |= {"name": "net"}
    refused(call(plugin, None, environ, json.dumps(network).encode()), 1)
    network |= {"cniVersion": "0.3.1"}
    refused(call(plugin, "CHECK", environ, json.dumps(network).encode()), 1, "CHECK")
    refused(call(plugin, None, environ, json.dumps(network).encode()), 4, "CNI_NETNS")
    environ |= {"CNI_NETNS": sandbox}
    refused(call(plugin, None, environ, json.dumps(network).encode()), 2, "memif")
    network |= {"host": {}}
    refused(call(plugin, None, environ, json.dumps(network).encode()), 7, "ipam.type")
    assert delegate.calls() == []
    assert not bare_node.state.exists()


def test_033_what_others_put_into_the_configuration(node: Node, sandbox: str) -> None:
    """Everything that the specification, libcni and Multus may add is accepted without a warning."""
    keys: dict[str, Any] = {
        "capabilities": {"mac": True, "ips": True, "portMappings": True, "CNIDeviceInfoFile": True, "deviceID": True},
        "runtimeConfig": {
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
            "deviceID": "0000:00:01.0",
        },
        "args": {"labels": [{"key": "app", "value": "x"}], "cni": {"anything": [1, None]}},
        "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": sandbox}], "dns": {}},
        "dns": {},
        "ipam": {},
        "ipMasq": False,
        "disableCheck": False,
        "deviceID": "0000:00:01.0",
        "pciBusID": "0000:00:01.0",
        "cni.dev/anything": {"x": 1},
        "cni.dev/valid-attachments": None,
    }
    network = node.network(**keys)
    added = node.run("ADD", network, sandbox)
    result = succeeded(added)
    assert b"unknown" not in added.stderr
    succeeded(node.run("CHECK", {**network, "prevResult": result}, sandbox))
    succeeded(node.run("STATUS", network))
    succeeded(node.run("DEL", network, sandbox))
    for key in ("runtimeConfig", "args", "ipam", "dns", "prevResult"):
        nothing = node.network() | {key: None}
        succeeded(node.run("ADD", nothing, sandbox))
        succeeded(node.run("DEL", nothing, sandbox))
    assert node.leftovers() == {}


def test_034_unknown_keys_are_ignored_with_a_warning(node: Node, sandbox: str) -> None:
    """Unknown keys, at the top or in a block, are named on stderr and change nothing."""
    network = node.network(mystery=1, container={"vhost": {"riddle": 2}})
    network["host"] |= {"enigma": 3, "vhost": {"mode": "client", "puzzle": 4}}
    added = node.run("ADD", network, sandbox)
    succeeded(added)
    for name in ("mystery", "container.vhost.riddle", "host.enigma", "host.vhost.puzzle"):
        assert f"'{name}' is unknown and ignored".encode() in added.stderr
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}


def test_034_a_misspelt_key_is_refused(node: Node, sandbox: str) -> None:
    """A key that resembles a known one of its place is 7 at ADD and STATUS, before any effect.

    Other verbs work from the record.
    """
    good = node.network("1.1.0")
    wrong = good | {"host": {"engine": "ovs-dpdk", "vhost": {"mode": "client"}, "brigde": {"bridgeName": "br-test"}}}
    for verb in ("ADD", "STATUS"):
        refused(node.run(verb, wrong, sandbox), 7, "'host.brigde'", "'host.bridge' is probably meant")
    assert node.leftovers() == {}
    result = succeeded(node.run("ADD", good, sandbox))
    succeeded(node.run("CHECK", wrong | {"prevResult": result}, sandbox))
    succeeded(node.run("GC", wrong | {"cni.dev/valid-attachments": [{"containerID": CONTAINER, "ifname": "net1"}]}))
    succeeded(node.run("DEL", wrong, sandbox))
    assert node.leftovers() == {}


def test_034_who_wants_no_warnings_has_none(node: Node, sandbox: str) -> None:
    """With `logLevel` error in the network, stderr has errors only."""
    network = node.network(mystery=1, logLevel="error")
    added = node.run("ADD", network, sandbox)
    succeeded(added)
    assert added.stderr == b""
    succeeded(node.run("DEL", network, sandbox))


class TestOptions:
    """Item 35: options that cannot be served, and values that make no sense."""

    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            ({"ipMasq": True}, ("ipMasq", "true")),
            ({"ipam": {"type": "dhcp"}}, ("ipam.type", "dhcp")),
            ({"host": {"engine": "vpp"}}, ("host.engine", "vpp")),
            ({"host": {"iftype": "memif"}}, ("host.iftype", "memif")),
            ({"container": {"iftype": "memif"}}, ("container.iftype", "memif")),
            ({"host": {"iftype": "internal"}}, ("host.iftype", "internal")),
            ({"netem": {"latency_ms": 20}}, ("netem", "20")),
            ({"host": {"bandwidth": {"egressRate": 1}}}, ("host.bandwidth", "egressRate")),
        ],
    )
    def test_035_understood_but_impossible(
        self, bare_node: Node, sandbox: str, keys: dict[str, Any], words: tuple[str, ...]
    ) -> None:
        """A request that is understood but cannot be served here is 2, which names key and value, before any effect."""
        refused(bare_node.run("ADD", bare_node.network() | keys, sandbox), 2, *words)
        assert not bare_node.state.exists()

    def test_035_malformed_values(self, bare_node: Node, sandbox: str) -> None:
        """A malformed value is 7, which names its key, in our block and in runtimeConfig; one of a wrong type is 6."""
        cases: list[tuple[dict[str, Any], int, str]] = [
            ({"runtimeConfig": {"mac": "02:00"}}, 7, "runtimeConfig.mac"),
            ({"runtimeConfig": {"mac": "01:00:00:00:00:01"}}, 7, "runtimeConfig.mac"),
            ({"runtimeConfig": {"mac": 2}}, 6, "runtimeConfig.mac"),
            ({"args": {"cni": {"mac": "ff:ff"}}}, 7, "args.cni.mac"),
            ({"args": {"cni": {"mac": 2}}}, 6, "args.cni.mac"),
            ({"runtimeConfig": {"ips": ["10.0.0.300/24"]}, "ipam": {"type": "static"}}, 7, "runtimeConfig.ips"),
            ({"runtimeConfig": {"ips": "10.0.0.3"}, "ipam": {"type": "static"}}, 6, "runtimeConfig.ips"),
            ({"runtimeConfig": {"CNIDeviceInfoFile": "relative"}}, 7, "runtimeConfig.CNIDeviceInfoFile"),
            ({"runtimeConfig": {"bandwidth": {"ingressBurst": 1}}}, 7, "runtimeConfig.bandwidth.ingressBurst"),
            ({"bandwidth": {"ingressRate": 1}}, 7, "bandwidth.ingressRate"),
            ({"bandwidth": 0}, 6, "bandwidth"),
            ({"runtimeConfig": []}, 6, "runtimeConfig"),
            ({"host": {"mtu": 67}}, 7, "host.mtu"),
            ({"host": {"mtu": "1500"}}, 6, "host.mtu"),
            ({"host": {"mac": "ff:ff:ff:ff:ff:ff"}}, 7, "host.mac"),
            ({"host": {"bridge": {"bridgeName": "a/b"}}}, 7, "host.bridge.bridgeName"),
            ({"host": {"bridge": {"vlanId": 4095}}}, 7, "host.bridge.vlanId"),
            ({"host": {"bridge": {"trunks": ["9-5"]}}}, 7, "host.bridge.trunks"),
            ({"host": {"bridge": {"vlanId": 5, "trunks": [9]}}}, 7, "host.bridge.trunks"),
            ({"host": {"bridge": {"vlanMode": "qinq"}}}, 7, "host.bridge.vlanMode"),
            ({"host": {"vhost": {"dirmode": "rwx"}}}, 7, "host.vhost.dirmode"),
            ({"host": {"vhost": {"socketfile": "../x"}}}, 7, "host.vhost.socketfile"),
            ({"host": {"engine": "snabb"}}, 7, "host.engine"),
            ({"host": {"vhost": {"mode": "srver"}}}, 7, "host.vhost.mode"),
            ({"container": {"vhost": {"mode": "CLIENT"}}}, 7, "container.vhost.mode"),
            ({"shared_dir": "/x"}, 7, "'sharedDir' is probably meant"),
            ({"host": []}, 6, "host"),
            ({"dns": {"nameservers": [1]}}, 6, "dns.nameservers"),
            ({"sharedDir": "relative"}, 7, "sharedDir"),
        ]
        for keys, code, word in cases:
            refused(bare_node.run("ADD", bare_node.network() | keys, sandbox), code, word)
        assert not bare_node.state.exists()

    def test_035_unusable_args_are_ignored(self, node: Node, sandbox: str) -> None:
        """Nothing in `args` is an error, except a MAC that no port can have, as with the bridge plugin."""
        args: list[Any] = [[], "x", {"cni": []}, {"cni": {"mac": None, "ips": 3}}, {"cni": {"mac": "", "ips": ["nonsense"]}}]
        for value in args:
            result = succeeded(node.run("ADD", node.network(args=value), sandbox))
            assert len(result["interfaces"][0]["mac"]) == len(MAC)
            succeeded(node.run("DEL", node.network(args=value), sandbox))
        assert node.leftovers() == {}


def test_036_del_works_from_the_record(node: Node, sandbox: str) -> None:
    """DEL with a different configuration than ADD's removes what ADD made, with lease and bridge."""
    network = node.network("1.0.0", ipam=node.host_local(), sharedDir=str(node.directory / "elsewhere"))
    succeeded(node.run("ADD", network, sandbox))
    changed = node.network("1.1.0", host={"bridge": {"bridgeName": "br-other"}}, ipam=ipam(scripted(node)), sharedDir="/nowhere")
    succeeded(node.run("DEL", changed, sandbox))
    assert node.leftovers() == {}
    assert list((node.directory / "elsewhere").iterdir()) == []


def test_037_spelling_of_our_keys(node: Node, sandbox: str) -> None:
    """Keys match in upper and lower case, as the former plugin's manifests need it; one key in two spellings is 7."""
    host = {"ENGINE": "ovs-dpdk", "Vhost": {"Mode": "client"}, "bridge": {"BRIDGENAME": "br-test", "vlanid": 7}, "MTU": 2000}
    network = {**without(node.network(), "host"), "Host": host}
    added = node.run("ADD", network, sandbox)
    result = succeeded(added)
    assert b"unknown" not in added.stderr
    assert result["interfaces"][0]["mtu"] == 2000
    (port,) = switch_of(node).ports("br-test")
    assert switch_of(node).port(port)["tag"] == 7
    succeeded(node.run("DEL", network, sandbox))
    vhost_twice = {"host": {"vhost": {"mode": "client", "Mode": ""}}}
    spelled: list[dict[str, Any]] = [{"host": {"mtu": 1500, "MTU": 1500}}, {"host": {}, "HOST": {}}, vhost_twice]
    for twice in spelled:
        refused(node.run("ADD", node.network() | twice, sandbox), 7, "two spellings")
    assert node.leftovers() == {}


@pytest.mark.parametrize(
    "keys", [{"name": "n" * 100_000}, {"sharedDir": "x" * 100_000}, {"host": {"k" * 100_000: 1, "engine": 5}}]
)
def test_long_values_are_shortened(node: Node, sandbox: str, keys: dict[str, Any]) -> None:
    """The author of a network cannot fill the node's logs or the pod's events with long values."""
    added = node.run("ADD", node.network(**keys), sandbox)
    assert added.code in (6, 7)
    assert added.document["msg"]
    assert len(added.stdout) < 10_000
    assert len(added.stderr) < 15_000
    assert node.leftovers() == {}

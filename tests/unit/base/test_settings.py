"""The node's settings: where a value comes from, what is refused, and that the documentation agrees."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from userspace_cni.base import settings
from userspace_cni.base.errors import InvalidConfig, Undecodable
from userspace_cni.base.settings import Settings, load
from userspace_cni.base.tenancy import Rule

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "settings.md"
DEFAULTS = {
    "ovsdb": "unix:/var/run/openvswitch/db.sock",
    "ovs_rundir": "/var/run/openvswitch",
    "ovs_sockdir": "",
    "switch_netns": "",
    "kernel_port": "auto",
    "mtu": 0,
    "mtu_file": "",
    "kubeovn_annotations": False,
    "ovn_nb": "",
    "ovn_sb": "",
    "ovn_private_key": "",
    "ovn_certificate": "",
    "ovn_ca_cert": "",
    "network_objects": False,
    "gateway_bridge": "",
    "routes": False,
    "route_protocol": 148,
    "route_metric6": 100,
    "route_exclude_namespaces": ("kube-system",),
    "route_cluster_ranges": (),
    "routes_file": "",
    "cni_conf_file": "",
    "cni_conf_dir": "/etc/cni/net.d",
    "cni_cache_dir": "/var/lib/cni",
    "cri_socket": "/run/containerd/containerd.sock",
    "state_dir": "/var/lib/cni/userspace",
    "run_dir": "/run/userspace-cni",
    "socket": "",
    "hand_over": True,
    "legacy_state_dir": "/var/lib/cni/usrspcni/data",
    "short_dir": "/var/lib/vhost_sockets",
    "ovn_bridge": "br-int",
    "ovn_naming": "ovn-kubernetes",
    "ovn_default_network": True,
    "ovn_default_limits": "node",
    "ovn_pod_ports": 8,
    "ovn_services": True,
    "ovn_policies": True,
    "policy_fragments": "refuse",
    "ovn_rundir": "/var/run/ovn",
    "ovn_recompute_s": 0.0,
    "ovn_gateway_bridge": "",
    "ovn_gateway_interface": "",
    "ovn_gateway_patch": "",
    "ovn_conntrack_zone": 64000,
    "mount_pod_dirs": "always",
    "default_shared_dir": "/usr/local/var/run/openvswitch",
    "kubelet_dir": "/var/lib/kubelet",
    "shared_volume": "shared-dir",
    "require_volume": True,
    "node_name": "",
    "kubeconfig": "",
    "netconf_kubeconfig": "fallback",
    "kubeconfig_dirs": ("/etc/cni", "/etc/kubernetes"),
    "kubeconfig_exec": False,
    "shared_dirs": (),
    "devices_per_bridge": 0,
    "ports_per_bridge": 64,
    "dra": False,
    "cdi_dir": "/var/run/cdi",
    "afxdp_max": 16,
    "device_info_dir": "/var/run/k8s.cni.cncf.io/devinfo",
    "host_root": "/",
    "tick_s": 30.0,
    "deadline_s": 30.0,
    "waiting_per_namespace": 16,
    "spool_max": 1024,
    "metrics_listen": "",
    "health_listen": "",
    "otlp_endpoint": "",
    "controller_namespace": "userspace-cni",
    "log_level": "info",
    "log_format": "text",
}
AGENT_ONLY = {"host_root", "otlp_endpoint", "ovn_recompute_s", "ports_per_bridge", "tick_s"}
NAMES = {
    **{key: f"USERSPACE_CNI_{key.upper()}" for key in DEFAULTS},
    "ovs_rundir": "OVS_RUNDIR",
    "ovs_sockdir": "OVS_SOCKDIR",
}
OF_TABLES = ("rules", "mirrors", "provider_networks", "gateways")
WITH_VALUE = [item for item in fields(Settings) if item.name not in OF_TABLES]
Value = str | int | float | tuple[str, ...]
OTHER_VALUES: dict[str, Value] = {
    "gateway_bridge": "br-int",
    "ovn_bridge": "br-ovn",
    "ovn_naming": "kube-ovn",
    "ovn_recompute_s": 600.0,
    "ovn_gateway_bridge": "breth0",
    "ovn_gateway_interface": "eth0",
    "ovn_gateway_patch": "patch-to-br-int",
    "ovn_conntrack_zone": 64001,
    "ovn_default_network": False,
    "ovn_default_limits": "ovn",
    "ovn_pod_ports": 3,
    "ovn_services": False,
    "ovn_policies": False,
    "policy_fragments": "allow",
    "kubeconfig_dirs": ("/a", "/b/c"),
    "kubeconfig_exec": True,
    "hand_over": False,
    "require_volume": False,
    "shared_dirs": ("/d", "/e"),
    "ovsdb": "tcp:192.0.2.1:6640",
    "mount_pod_dirs": "long",
    "shared_volume": "sockets",
    "netconf_kubeconfig": "never",
    "host_root": "/host",
    "tick_s": 1.5,
    "devices_per_bridge": 16,
    "ports_per_bridge": 100,
    "dra": True,
    "cdi_dir": "/srv/cdi",
    "afxdp_max": 7,
    "deadline_s": 2.5,
    "waiting_per_namespace": 7,
    "spool_max": 7,
    "metrics_listen": "127.0.0.1:9100",
    "health_listen": "[::1]:9101",
    "otlp_endpoint": "http://127.0.0.1:4318",
    "controller_namespace": "network",
    "log_level": "debug",
    "log_format": "json",
    "kernel_port": "afxdp",
    "mtu": 1400,
    "kubeovn_annotations": True,
    "ovn_nb": "tcp:192.0.2.1:6641,ssl:[2001:db8::2]:6641",
    "ovn_sb": "unix:/run/ovn/ovnsb_db.sock",
    "network_objects": True,
    "node_name": "node-7",
    "routes": True,
    "route_protocol": 200,
    "route_metric6": 7,
    "route_exclude_namespaces": ("infra", "kube-system"),
    "route_cluster_ranges": ("10.96.0.0/12", "10.244.0.0/16"),
}


@pytest.fixture(autouse=True)
def usual_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the file that is read when none is named; it does not exist at first."""
    path = tmp_path / "config.toml"
    monkeypatch.setattr(settings, "CONFIG_FILE", str(path))
    return path


@pytest.fixture
def cluster_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the file for all nodes; it does not exist at first."""
    path = tmp_path / "cluster.toml"
    monkeypatch.setattr(settings, "CLUSTER_FILE", str(path))
    return path


def as_text(value: Value) -> str:
    """The value in the form of a variable."""
    return ":".join(value) if isinstance(value, tuple) else str(value)


def as_toml(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(list(value)) if isinstance(value, tuple) else repr(value)


def other_value(key: str) -> Value:
    """A valid value of `key` that is not its default."""
    return OTHER_VALUES.get(key, f"/elsewhere/{key}")


def values(read: Settings) -> dict[str, object]:
    """The values that were read of every key."""
    return {key: value for key, value in asdict(read).items() if key not in OF_TABLES}


def test_every_default() -> None:
    """Without file and environment every key has its documented default, and there are no rules."""
    assert values(load({})) == DEFAULTS
    assert load({}).rules == ()


@pytest.mark.parametrize("key", DEFAULTS)
def test_environment_name_of_every_key(key: str) -> None:
    """Every key can be set by its variable, and nothing else changes with it."""
    value = other_value(key)
    assert values(load({NAMES[key]: as_text(value)})) == {**DEFAULTS, key: value}


@pytest.mark.parametrize("key", DEFAULTS)
def test_every_key_in_the_file(usual_file: Path, key: str) -> None:
    """Every key can be set in the file."""
    value = other_value(key)
    usual_file.write_text(f"{key} = {as_toml(value)}\n")
    assert values(load({})) == {**DEFAULTS, key: value}


def test_environment_wins_over_file(usual_file: Path) -> None:
    """A variable takes precedence over the file, and an empty one counts as unset."""
    usual_file.write_text('log_level = "error"\nshared_volume = "of-file"\n')
    read = load({"USERSPACE_CNI_LOG_LEVEL": "debug", "USERSPACE_CNI_SHARED_VOLUME": ""})
    assert (read.log_level, read.shared_volume) == ("debug", "of-file")


def test_node_wins_over_cluster(cluster_file: Path, usual_file: Path) -> None:
    """The node's file takes precedence key by key; if it has rules, they replace all of the cluster's."""
    rule = "[[rule]]\nnamespaces = ['*']\nbridges = [{}]\n"
    cluster_file.write_text('log_level = "error"\ntick_s = 5\n' + rule.format("'br-cluster'"))
    assert (load({}).tick_s, load({}).rules[0].bridges) == (5.0, ("br-cluster",))
    usual_file.write_text('log_level = "debug"\n')
    read = load({})
    assert (read.log_level, read.tick_s, read.rules[0].bridges) == ("debug", 5.0, ("br-cluster",))
    usual_file.write_text(rule.format("'br-node'"))
    assert [rule.bridges for rule in load({}).rules] == [("br-node",)]
    cluster_file.write_text("tock_s = 5\n")
    with pytest.raises(InvalidConfig, match=str(cluster_file)):
        load({})


def test_named_file_replaces_the_usual_ones(cluster_file: Path, usual_file: Path, tmp_path: Path) -> None:
    """The file that USERSPACE_CNI_CONFIG names is read instead of the usual ones, not in addition."""
    cluster_file.write_text('log_level = "debug"\n')
    usual_file.write_text('log_level = "error"\n')
    named = tmp_path / "named.toml"
    named.write_text("deadline_s = 5\n")
    read = load({"USERSPACE_CNI_CONFIG": str(named)})
    assert (read.log_level, read.deadline_s) == ("info", 5.0)


def test_node_name_falls_back() -> None:
    """NODE_NAME names the node unless our own variable does."""
    assert load({"NODE_NAME": "a"}).node_name == "a"
    assert load({"NODE_NAME": "a", "USERSPACE_CNI_NODE_NAME": "b"}).node_name == "b"


def test_agent_socket_is_in_run_dir() -> None:
    """The agent's socket is in run_dir unless it is set."""
    assert Settings(run_dir="/r").agent_socket == "/r/agent.sock"
    assert Settings(run_dir="/r", socket="/s").agent_socket == "/s"


def test_directories_lose_their_trailing_slash() -> None:
    """A trailing slash makes no difference: paths made from a directory are compared as text."""
    assert load({"USERSPACE_CNI_STATE_DIR": "/var//lib/x/"}).state_dir == "/var/lib/x"
    assert load({"USERSPACE_CNI_STATE_DIR": "//var/lib/x"}).state_dir == "/var/lib/x"


@pytest.mark.parametrize(("text", "root"), [("/", "/"), ("//", "/"), ("/host/", "/host"), ("//host", "/host")])
def test_host_root_is_spelled_in_one_way(text: str, root: str) -> None:
    """Any spelling of the host's own root means "/", and never another directory."""
    assert load({"USERSPACE_CNI_HOST_ROOT": text}).host_root == root


@pytest.mark.parametrize("address", ["0.0.0.0:9100", "[::]:9100", "[2001:db8::7]:1", "localhost:65535", "node-7.example:9100"])
def test_address_for_metrics(address: str) -> None:
    """An address or name with a port is accepted as it is."""
    assert load({"USERSPACE_CNI_METRICS_LISTEN": address}).metrics_listen == address


def test_unknown_variables_are_ignored() -> None:
    """Variables of our prefix that Kubernetes makes for a Service of our name are no typo of ours."""
    assert load({"USERSPACE_CNI_SERVICE_HOST": "10.0.0.1", "USERSPACE_CNI_PORT": "tcp://10.0.0.1:80"}) == Settings()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('logLevel = "debug"', ["unknown key 'logLevel'", "'debug'", "log_level"]),
        ("[ovs]\nrundir = 1", ["unknown key 'ovs'"]),
        ("log_level = 3", ["'log_level'", "3 is a whole number", "string"]),
        ('deadline_s = "30"', ["'deadline_s'", "'30' is a string", "number"]),
        ("spool_max = 1.5", ["'spool_max'", "1.5 is a number"]),
        ("spool_max = true", ["'spool_max'", "True is a boolean"]),
        ("deadline_s = false", ["'deadline_s'", "False is a boolean"]),
        ('shared_dirs = "/a"', ["'shared_dirs'", "'/a' is a string", "list of strings"]),
        ("kubeconfig_dirs = [1]", ["'kubeconfig_dirs'", "list of strings"]),
        ('kubeconfig_exec = "yes"', ["'kubeconfig_exec'", "'yes' is a string", "boolean"]),
    ],
)
def test_bad_line_in_the_file(usual_file: Path, line: str, named: list[str]) -> None:
    """An unknown key and a value of the wrong type are refused with 7, naming file, key and value."""
    usual_file.write_text(f"{line}\n")
    with pytest.raises(InvalidConfig) as refused:
        load({})
    assert refused.value.code == 7
    assert [text for text in (str(usual_file), *named) if text not in str(refused.value)] == []


BAD_VALUES = [
    ("mount_pod_dirs", "never", "always, long"),
    ("netconf_kubeconfig", "sometimes", "never, fallback, always"),
    ("log_level", "INFO", "panic, error, warning, info, debug, verbose"),
    ("log_format", "JSON", "text, json"),
    ("ovsdb", "unix:relative", "unix:/PATH"),
    ("ovsdb", "ssl:192.0.2.1:6640", "tcp:IP:PORT"),
    ("ovsdb", "tcp:192.0.2.1", "tcp:IP:PORT"),
    ("ovsdb", "tcp:192.0.2.1:65536", "tcp:IP:PORT"),
    ("ovsdb", "unix:/" + "x" * 107, "at most 107 bytes"),
    ("ovn_nb", "192.0.2.1:6641", "ssl:IP:PORT"),
    ("ovn_nb", "tcp:192.0.2.1:6641, tcp:192.0.2.2:6641", "ssl:IP:PORT"),
    ("ovn_sb", "ssl:192.0.2.1", "ssl:IP:PORT"),
    ("state_dir", "relative", "absolute path"),
    ("state_dir", "/a/../b", "absolute path"),
    ("run_dir", "./x", "absolute path"),
    ("socket", "agent.sock", "absolute path"),
    ("ovs_rundir", "x", "absolute path"),
    ("ovs_sockdir", "x", "absolute path"),
    ("kubelet_dir", "~/kubelet", "absolute path"),
    ("short_dir", "/" + "x" * 60, "at most 60"),
    ("host_root", "host", "absolute path"),
    ("host_root", "/host/../etc", "absolute path"),
    ("metrics_listen", "9100", "HOST:PORT"),
    ("metrics_listen", ":9100", "HOST:PORT"),
    ("metrics_listen", "localhost", "HOST:PORT"),
    ("metrics_listen", "localhost:http", "HOST:PORT"),
    ("metrics_listen", "localhost:0", "HOST:PORT"),
    ("metrics_listen", "localhost:65536", "HOST:PORT"),
    ("metrics_listen", "::1:9100", "[ADDRESS]:PORT"),
    ("metrics_listen", "[::1]", "[ADDRESS]:PORT"),
    ("metrics_listen", "[localhost]:9100", "[ADDRESS]:PORT"),
    ("metrics_listen", "a b:9100", "HOST:PORT"),
    ("otlp_endpoint", "127.0.0.1:4318", "http://HOST:PORT"),
    ("otlp_endpoint", "grpc://127.0.0.1:4317", "http://HOST:PORT"),
    ("otlp_endpoint", "https://user:password@collector", "without a password"),
    ("otlp_endpoint", "http://collector/?key=1", "without a password or a query"),
    ("otlp_endpoint", "http://collector:0", "http://HOST:PORT"),
    ("otlp_endpoint", "http://collector..:4318", "http://HOST:PORT"),
    ("otlp_endpoint", f"http://{'a' * 64}:4318", "http://HOST:PORT"),
    ("otlp_endpoint", "http://[127.0.0.1]:4318", "http://HOST:PORT"),
    ("otlp_endpoint", "http://collector:66000", "http://HOST:PORT"),
    ("otlp_endpoint", "http://:4318", "http://HOST:PORT"),
    ("otlp_endpoint", "http://a b", "http://HOST:PORT"),
    ("otlp_endpoint", "http://[::1", "http://HOST:PORT"),
    ("shared_volume", "../etc", "volume name"),
    ("shared_volume", "a/b", "volume name"),
    ("tick_s", "0", "greater than 0"),
    ("devices_per_bridge", "-1", "from 0 to 1000"),
    ("devices_per_bridge", "1001", "from 0 to 1000"),
    ("ports_per_bridge", "0", "from 1 to 1000"),
    ("afxdp_max", "-1", "from 0 to 1000"),
    ("deadline_s", "-1", "greater than 0"),
    ("deadline_s", "nan", "greater than 0"),
    ("deadline_s", "inf", "greater than 0"),
    ("waiting_per_namespace", "-1", "from 0 to 1000"),
    ("waiting_per_namespace", "1001", "from 0 to 1000"),
    ("spool_max", "0", "greater than 0"),
    ("kubeconfig", "kube/config", "absolute path"),
    ("device_info_dir", "/a/../b", "absolute path"),
    ("switch_netns", "ovs", "absolute path"),
    ("kernel_port", "internal", "auto, system, afxdp, af_packet, af_xdp"),
    ("mtu", "67", "0 or from 68 to 65535"),
    ("mtu", "65536", "0 or from 68 to 65535"),
    ("mtu_file", "mtu.json", "absolute path"),
    ("cni_conf_file", "10-net.conflist", "absolute path"),
]
BAD_ITEMS = [
    ("kubeconfig_dirs", "etc/cni", "absolute path"),
    ("shared_dirs", "/a/../b", "absolute path"),
    ("shared_dirs", "/", "directory of its own"),
]


def test_an_empty_list_of_shared_dirs_is_not_the_default(usual_file: Path) -> None:
    """An empty list is refused, because it must not mean the usual directories; the error says how to allow none."""
    with pytest.raises(InvalidConfig, match=r"'shared_dirs' is empty; .*directories = \[\]"):
        load({NAMES["shared_dirs"]: ":"})
    usual_file.write_text("shared_dirs = []\n")
    with pytest.raises(InvalidConfig, match=f"{usual_file}: 'shared_dirs' is empty"):
        load({})


def test_no_rule_is_cut_off(usual_file: Path) -> None:
    """A file longer than what is read is refused: the rules at its end would not apply."""
    usual_file.write_text("#" * (1 << 20) + "\n[[rule]]\nnamespaces = ['*']\nbridges = []\n")
    with pytest.raises(Undecodable, match=f"settings file {usual_file} is too long"):
        load({})


@pytest.mark.parametrize(("key", "item", "reason"), BAD_ITEMS)
def test_bad_item_of_a_list(usual_file: Path, key: str, item: str, reason: str) -> None:
    """One bad item of a list is refused with 7, in file and variable, naming it and what would be right."""
    with pytest.raises(InvalidConfig, match=reason):
        load({NAMES[key]: f"/good:{item}"})
    usual_file.write_text(f"{key} = ['/good', {item!r}]\n")
    with pytest.raises(InvalidConfig, match=reason):
        load({})


@pytest.mark.parametrize(("text", "value"), [("TRUE", True), ("1", True), ("no", False)])
def test_boolean_in_a_variable(text: str, value: bool) -> None:
    """Words for true and false are taken in any case; anything else is refused with 7, naming variable and value."""
    assert load({"USERSPACE_CNI_KUBECONFIG_EXEC": text}).kubeconfig_exec is value
    with pytest.raises(InvalidConfig, match="USERSPACE_CNI_KUBECONFIG_EXEC: 'maybe' is neither"):
        load({"USERSPACE_CNI_KUBECONFIG_EXEC": "maybe"})


@pytest.mark.parametrize(("key", "value", "reason"), BAD_VALUES)
def test_bad_value_in_a_variable(key: str, value: str, reason: str) -> None:
    """An invalid value is refused with 7, naming variable, key, value and what would be right."""
    with pytest.raises(InvalidConfig) as refused:
        load({NAMES[key]: value})
    assert [text for text in (NAMES[key], f"'{key}'", value, reason) if text not in str(refused.value)] == []


@pytest.mark.parametrize(("key", "value", "reason"), BAD_VALUES)
def test_bad_value_in_the_file(usual_file: Path, key: str, value: str, reason: str) -> None:
    """The same value is refused in the file, naming the file."""
    usual_file.write_text(f"{key} = {value if isinstance(DEFAULTS[key], int | float) else repr(value)}\n")
    with pytest.raises(InvalidConfig) as refused:
        load({})
    assert [text for text in (str(usual_file), f"'{key}'", value, reason) if text not in str(refused.value)] == []


@pytest.mark.parametrize(
    "key", ["state_dir", "short_dir", "kubelet_dir", "ovs_rundir", "host_root", "log_level", "ovsdb", "shared_volume"]
)
def test_empty_value_in_the_file(usual_file: Path, key: str) -> None:
    """A key that needs a value cannot be empty in the file."""
    usual_file.write_text(f'{key} = ""\n')
    with pytest.raises(InvalidConfig, match=f"'{key}' is ''"):
        load({})


@pytest.mark.parametrize(("key", "value"), [("deadline_s", "soon"), ("spool_max", "1.5"), ("tick_s", "30s")])
def test_text_where_a_number_belongs(key: str, value: str) -> None:
    """A variable that is no number is refused, naming variable and value."""
    with pytest.raises(InvalidConfig) as refused:
        load({NAMES[key]: value})
    assert f"{NAMES[key]}: {value!r} is not a number" in refused.value.message


@pytest.mark.parametrize(
    "content",
    [b"log_level = ", b"\xff\xfe", b'{"log_level": "info"}', b"a = 1\na = 2\n[[a]]\n", b"\0", b"a = " + b"[" * 9999],
)
def test_file_that_is_not_toml(usual_file: Path, content: bytes) -> None:
    """A file that is not TOML is refused with 6, naming it and where it goes wrong."""
    usual_file.write_bytes(content)
    with pytest.raises(Undecodable) as refused:
        load({})
    assert refused.value.code == 6
    assert f"settings file {usual_file} is not TOML" in refused.value.message
    assert refused.value.details


def test_absent_named_file(tmp_path: Path) -> None:
    """A file that is named has to exist; the usual one need not."""
    path = tmp_path / "absent.toml"
    with pytest.raises(InvalidConfig) as refused:
        load({"USERSPACE_CNI_CONFIG": str(path)})
    assert str(path) in refused.value.message
    assert "USERSPACE_CNI_CONFIG" in refused.value.details


@pytest.mark.parametrize("below", ["", "/file.toml"])
def test_unreadable_file(usual_file: Path, below: str) -> None:
    """A file that exists and cannot be read is an error that names it, and no default is used."""
    if below:
        usual_file.write_text("")
    else:
        usual_file.mkdir()
    with pytest.raises(Undecodable) as refused:
        load({"USERSPACE_CNI_CONFIG": f"{usual_file}{below}"})
    assert f"settings file {usual_file}{below}" in refused.value.message


RULES = """
log_level = "debug"
[[rule]]
namespaces = ["tenant-*"]
bridges = ["br-tenant", "br-t*"]
vlans = [100, "200-299"]
[[rule]]
namespaces = ["*"]
directories = ["/var/lib/tenant"]
"""


def test_rules_in_the_file(usual_file: Path) -> None:
    """The tables [[rule]] are read in their order beside other keys, and bind `sharedDir`; no variable holds or hides them."""
    usual_file.write_text(RULES)
    for environ in ({}, {"USERSPACE_CNI_RULES": "x", "USERSPACE_CNI_RULE": "y"}):
        read = load(environ)
        assert (read.log_level, [(rule.number, rule.namespaces) for rule in read.rules]) == (
            "debug",
            [(1, ("tenant-*",)), (2, ("*",))],
        )
    bounds = read.bounds("tenant-a")
    assert bounds is not None
    assert bounds.directories == ("/var/lib/tenant",)
    assert read.bounds("") is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[rule]\nnamespaces = ['*']\n", ["'rule' is", "[[rule]]"]),
        ("[[rules]]\nnamespaces = ['*']\n", ["unknown key 'rules'", "rule"]),
        ("rules = []\n", ["unknown key 'rules'"]),
        ("[[rule]]\nnamespaces = ['*']\nbridge = ['br0']\n", ["[[rule]] number 1: unknown key 'bridge' = ['br0']"]),
        (f"{RULES}vlans = [1]\n", ["[[rule]] number 2: 'vlans' is [1]"]),
        (f"{RULES}tick_s = 1\n", ["[[rule]] number 2: unknown key 'tick_s' = 1"]),
    ],
)
def test_bad_rules_in_the_file(usual_file: Path, text: str, named: list[str]) -> None:
    """What is not a rule is refused with 7, naming file, rule, key and value: nothing is served with half of the rules."""
    usual_file.write_text(text)
    with pytest.raises(InvalidConfig) as refused:
        load({})
    assert [part for part in (str(usual_file), *named) if part not in str(refused.value)] == []


def test_documented_rule(usual_file: Path) -> None:
    """The documentation's example is valid, and has every key of a rule."""
    [example] = re.findall(r"```toml\n(\[\[rule\]\].*?)```", DOCUMENT.read_text(), re.DOTALL)
    usual_file.write_text(example)
    used = {key for rule in load({}).rules for key, value in asdict(rule).items() if value is not None}
    assert used == {item.name for item in fields(Rule)}


def documented() -> dict[str, tuple[str, str, str]]:
    """The table of docs/settings.md: key to default, environment name and meaning."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    return {key: (default, environment, meaning) for key, default, environment, meaning in rows}


def test_documented_keys() -> None:
    """The table has every key with a value of its own, in the order of the dataclass, and no other."""
    assert list(documented()) == [item.name for item in WITH_VALUE]


@pytest.mark.parametrize("item", WITH_VALUE, ids=lambda item: item.name)
def test_documented_default_and_variable(item: object) -> None:
    """Default and variable in the table are those of the code; a computed default is described in words."""
    key = getattr(item, "name", "")
    value = getattr(item, "default", None)
    default, environment, meaning = documented()[key]
    if value in ("", ()):
        assert not re.fullmatch(r"`[^`]*`", default)
    elif isinstance(value, tuple):
        assert default == ", ".join(f"`{path}`" for path in value)
    else:
        shown = f"{value:g}" if isinstance(value, float) else as_toml(value) if isinstance(value, bool) else value
        assert default == f"`{shown}`"
    assert environment.startswith(f"`{NAMES[key]}`")
    assert ("read by the agent only" in meaning) == (key in AGENT_ONLY)

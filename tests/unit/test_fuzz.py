"""Any input of a runtime, a manifest or a broken disk gives one well-formed answer, never a bug's, and leaves nothing behind.

`HYPOTHESIS_PROFILE=fuzz pytest tests/unit/test_fuzz.py` searches long; FUZZ_EXAMPLES says how long.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from localdb import Store
from tests.lab.node.calls import call_plugin
from tests.lab.node.world import World
from userspace_cni.cni.request import VERBS
from userspace_cni.cni.result import SUPPORTED_VERSIONS

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
PROFILE = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "20000")) if LONG else 60,
    suppress_health_check=list(HealthCheck),
)
pytestmark = pytest.mark.timeout(0 if LONG else 120)

CONTAINER = "0123456789abcdef0123456789abcdef"
GOOD_ENVIRON = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": CONTAINER,
    "CNI_NETNS": "/run/netns/x",
    "CNI_IFNAME": "net1",
    "CNI_ARGS": "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_UID=11111111-2222-3333-4444-555555555555",
    "CNI_PATH": "/opt/cni/bin",
}
OTHER = "fedcba9876543210"
"""A container whose attachment no call may change."""

GOOD_CONFIGS: list[dict[str, Any]] = [
    {"cniVersion": "1.1.0", "name": "n", "type": "userspace"},
    {
        "cniVersion": "1.1.0",
        "name": "n",
        "type": "userspace",
        "ipam": {"type": "host-local", "subnet": "10.1.2.0/24"},
        "host": {
            "engine": "ovs-dpdk",
            "iftype": "vhostuser",
            "netType": "bridge",
            "mtu": 9000,
            "mac": "02:00:00:00:00:01",
            "vhost": {"mode": "client", "group": "hugetlbfs", "dirmode": "0775", "socketfile": "s"},
            "bridge": {
                "bridgeName": "br-dpdk0",
                "vlanId": 7,
                "trunks": [1, "5-9", {"minID": 20, "maxID": 30}],
                "vlanMode": "native-tagged",
            },
        },
        "container": {"engine": "vpp", "vhost": {"mode": "server", "queues": 2, "queueSize": 1024}, "bridge": {"bridgeId": 4}},
        "runtimeConfig": {"mac": "02:00:00:00:00:02", "ips": ["10.1.2.3/24"], "CNIDeviceInfoFile": "/run/devinfo/x"},
        "args": {"cni": {"mac": "02:00:00:00:00:03", "ips": ["10.1.2.3/24"]}},
        "dns": {"nameservers": ["10.0.0.1"], "domain": "d", "search": ["s"], "options": ["o"]},
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:04", "sandbox": "/run/netns/x"}],
            "ips": [{"address": "10.9.9.9/24", "gateway": "10.9.9.1", "interface": 0}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.9.9.1"}],
            "dns": {},
        },
        "cni.dev/valid-attachments": [{"containerID": OTHER, "ifname": "net1"}],
        "logLevel": "verbose",
        "sharedDir": "/shared",
        "consumer": "kubevirt",
    },
    {
        "cniVersion": "0.3.1",
        "name": "n",
        "type": "userspace",
        "kubeconfig": "/etc/kubeconfig",
        "host": {"engine": "ovs-dpdk", "vhost": {"mode": "server", "socketmode": "0660", "user": 107}},
        "cni.dev/valid-attachments": None,
        "logFile": "/var/log/x",
    },
]
ODD = [
    *("", "é" * 8, "..", "/", "a/b", "a=b", "a,b", "*", "-x", "x" * 200, "\n", "1e999"),
    *("%s", "{}", "../../etc/passwd", "0", "-1", "true", "client", "SERVER", "10.0.0.1/24", "::1/128", "01:00:5e:00:00:01"),
    *SUPPORTED_VERSIONS,
]
TEXT = st.text(max_size=12) | st.sampled_from(ODD)
RAW_TEXT = st.text(st.characters(exclude_categories=()), max_size=12) | st.sampled_from(
    [*ODD, "\0", "\ud800", "\udcff", "\ud800\udc00"]
)
"""Text with lone surrogates: Python reads bytes of a variable that are not UTF-8 as such, from U+DC80 on."""
NUMBERS = (
    st.integers(-2, 70)
    | st.integers()
    | st.floats()
    | st.sampled_from([128, 4095, 9000, 65536, 2**31, 2**64])
    | st.builds(lambda: 10**4000)
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


def another(value: Any) -> st.SearchStrategy[Any]:
    """Another value, mostly of the same JSON type."""
    alike: dict[type[Any], st.SearchStrategy[Any]] = {str: TEXT, int: NUMBERS, list: st.lists(JSON, max_size=3)}
    return alike.get(type(value), JSON) | alike.get(type(value), JSON) | JSON | RAW_TEXT


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """`value` with up to three values replaced, removed, nested or joined by another one."""
    value = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(0, 3))):
        found = list(places(value))
        if not found:
            break
        path = draw(st.sampled_from(found))
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        key = path[-1]
        change = draw(st.sampled_from(["replace", "replace", "replace", "remove", "join", "respell", "nest"]))
        if change == "replace":
            holder[key] = draw(another(holder[key]))
        elif change == "remove":
            del holder[key]
        elif change == "nest":
            for _ in range(draw(st.sampled_from([1, 90, 300]))):
                holder[key] = draw(st.sampled_from([[holder[key]], {"x": holder[key]}]))
        elif isinstance(holder, list):
            holder.append(draw(JSON))
        elif change == "join":
            holder[draw(TEXT)] = draw(JSON)
        else:
            holder[key.upper()] = holder.pop(key) if draw(st.booleans()) else draw(JSON)
    return value


def encoded(value: Any) -> bytes:
    """JSON as a careless program writes it, with NaN, infinities and half surrogates."""
    return json.dumps(value).encode()


CONFIGS = st.sampled_from(GOOD_CONFIGS).flatmap(mutated)
STDIN = st.one_of(
    st.sampled_from(GOOD_CONFIGS).map(encoded),
    CONFIGS.map(encoded),
    CONFIGS.map(encoded),
    CONFIGS.map(encoded).map(lambda raw: raw.replace(b"9000", b"1e999").replace(b'"s"', b'"\\ud800"')),
    JSON.map(encoded),
    st.binary(max_size=60),
    st.builds(lambda raw, at, junk: raw[:at] + junk + raw[at:], CONFIGS.map(encoded), st.integers(0, 200), st.binary(max_size=4)),
    st.sampled_from([b"[" * 5000, b'{"a":' * 900 + b"1" + b"}" * 900, b'{"name":' + b"9" * 5000 + b"}", b"\xef\xbb\xbf{}"]),
)
MUTATED_ENVIRONS = st.builds(
    lambda verb, changes, gone: {
        name: value for name, value in {**GOOD_ENVIRON, "CNI_COMMAND": verb, **changes}.items() if name not in gone
    },
    st.sampled_from(VERBS),
    st.dictionaries(st.sampled_from([*GOOD_ENVIRON, "CNI_NETNS_OVERRIDE", "TRACEPARENT", "CNI_\udcff"]), RAW_TEXT, max_size=2),
    st.sets(st.sampled_from([*GOOD_ENVIRON, ""]), max_size=1),
)
ARGUMENTS = st.lists(st.tuples(st.sampled_from(["MAC", "IP", "K8S_POD_UID", "K8S_POD_NAME", "X"]), RAW_TEXT), max_size=4)
ENVIRONS = st.one_of(
    st.sampled_from(VERBS).map(lambda verb: {**GOOD_ENVIRON, "CNI_COMMAND": verb}),
    st.sampled_from(VERBS).map(lambda verb: {**GOOD_ENVIRON, "CNI_COMMAND": verb}),
    MUTATED_ENVIRONS,
    ARGUMENTS.map(lambda pairs: {**GOOD_ENVIRON, "CNI_ARGS": ";".join(f"{key}={value}" for key, value in pairs)}),
    st.dictionaries(st.sampled_from([*GOOD_ENVIRON, "OTHER"]), RAW_TEXT).map(lambda some: {"CNI_COMMAND": "ADD", **some}),
)


@pytest.fixture(autouse=True)
def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not flush: these tests are not about power cuts, and a flush per record would make examples slow."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)


@contextmanager
def node() -> Iterator[World]:
    """A node that has one attachment of another container."""
    directory = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        world = World(directory, log_level="panic")
        assert ask(world, {**GOOD_ENVIRON, "CNI_CONTAINERID": OTHER}, encoded(GOOD_CONFIGS[0])) == 0
        yield world
    finally:
        shutil.rmtree(directory)


def ask(world: World, environ: dict[str, str], stdin: bytes) -> int:
    """Exit code of one call, whose answer is checked against the contract with the runtime. Codes of errors are events."""
    answer = call_plugin(environ, lambda: stdin, lambda: world)
    verb = environ.get("CNI_COMMAND")
    assert answer.code in (0, 1)
    if answer.code == 0:
        if verb not in ("ADD", "VERSION"):
            assert answer.output == b""
            return 0
        result = only_document(answer.output)
        assert result["cniVersion"] in SUPPORTED_VERSIONS or verb == "VERSION"
        if verb == "ADD":
            assert_result(result, environ)
        return 0
    error = only_document(answer.output)
    event(f"{verb if verb in VERBS else 'no verb'} {error['code']}")
    assert error["code"] != 999, error
    assert error.keys() <= {"cniVersion", "code", "msg", "details"}
    assert type(error["code"]) is int
    assert error["code"] > 0
    assert error["cniVersion"] in SUPPORTED_VERSIONS
    assert isinstance(error["msg"], str)
    assert error["msg"]
    assert isinstance(error.get("details", ""), str)
    (error["msg"] + error.get("details", "")).encode()  # no half of a surrogate pair, which strict readers refuse
    return 1


def only_document(output: bytes) -> dict[str, Any]:
    """Decode stdout, which must be one JSON object that any reader accepts."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in the answer")

    assert output.isascii()
    document = json.loads(output, parse_constant=refuse)
    assert isinstance(document, dict)
    return document


def assert_result(result: dict[str, Any], environ: dict[str, str]) -> None:
    """The container's interface is in it as the specification wants it, and nothing that libcni's structs could not hold."""
    assert result.keys() <= {"cniVersion", "interfaces", "ips", "routes", "dns"}
    [ours] = [entry for entry in result["interfaces"][-1:] if entry["name"] == environ["CNI_IFNAME"]]
    assert ours["sandbox"] == environ["CNI_NETNS"]
    assert int(ours["mac"][:2], 16) & 1 == 0
    assert len(ours.get("socketPath", "")) <= 107 or ours["socketPath"].startswith("/pods/")
    for key, kind in {"nameservers": list, "domain": str, "search": list, "options": list}.items():
        assert isinstance(result.get("dns", {}).get(key, kind()), kind)
    assert result.get("dns", {}).keys() <= {"nameservers", "domain", "search", "options"}


def state(world: World) -> tuple[set[str], list[Any], list[Any]]:
    """What exists on the node and in its store."""
    return set(world.true), world.journal.records(), world.journal.places()


@PROFILE
@given(ENVIRONS, STDIN)
def test_any_call(environ: dict[str, str], stdin: bytes) -> None:
    """Any environment and any stdin get one answer of the contract; a refusal changes nothing, and DEL takes back an ADD."""
    with node() as world:
        before = state(world)
        code = ask(world, environ, stdin)
        if code == 1 or environ.get("CNI_COMMAND") in ("CHECK", "STATUS", "VERSION"):
            assert state(world) == before
        elif environ.get("CNI_COMMAND") == "ADD":
            assert len(world.journal.records()) == 2
            assert ask(world, {**environ, "CNI_COMMAND": "DEL"}, stdin) == 0
            assert state(world) == before


@PROFILE
@given(CONFIGS)
def test_any_network(config: Any) -> None:
    """A network that resembles a good one is attached or refused, alike at every repetition, and CHECK agrees with ADD."""
    stdin = encoded(config)
    with node() as world:
        before = state(world)
        code = ask(world, GOOD_ENVIRON, stdin)
        if code == 1:
            assert ask(world, GOOD_ENVIRON, stdin) == 1
            assert state(world) == before
            return
        attached = state(world)
        assert ask(world, GOOD_ENVIRON, stdin) == 1
        ask(world, {**GOOD_ENVIRON, "CNI_COMMAND": "CHECK"}, stdin)
        assert state(world) == attached
        assert (
            ask(world, {**GOOD_ENVIRON, "CNI_COMMAND": "DEL"}, encoded({key: config[key] for key in ("cniVersion", "name")})) == 0
        )
        assert state(world) == before


ANSWER = {"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24"}], "routes": [{"dst": "::/0"}], "dns": {"domain": "d"}}


@PROFILE
@given(mutated(ANSWER) | JSON)
def test_any_delegate(answer: Any) -> None:
    """For any answer of an IPAM plugin, its lease is kept by a successful ADD or released."""
    config = {**GOOD_CONFIGS[0], "ipam": {"type": "host-local"}}
    with node() as world:
        world.answer = answer
        before = state(world)
        if ask(world, GOOD_ENVIRON, encoded(config)) == 0:
            assert "lease" in world.true
            assert ask(world, {**GOOD_ENVIRON, "CNI_COMMAND": "DEL"}, encoded(config)) == 0
        assert state(world) == before


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes | None:
    """What may be in a file's place instead of `content`; None for no file."""
    how = draw(st.sampled_from(["as it was", "gone", "junk", "cut", "json", "value", "mutated", "mutated"]))
    if how == "gone":
        return None
    if how == "junk":
        return draw(st.binary(max_size=80))
    if how == "cut":
        return content[: draw(st.integers(0, len(content)))]
    if how == "json":
        return encoded(draw(JSON))
    if how == "as it was":
        return content
    envelope = json.loads(content)
    envelope["value"] = draw(JSON) if how == "value" else draw(mutated(envelope["value"]))
    return encoded(envelope)


@PROFILE
@given(st.data(), st.sampled_from(GOOD_CONFIGS), st.sampled_from(VERBS))
def test_any_state_directory(data: st.DataObject, config: dict[str, Any], verb: str) -> None:
    """With any files in the state directory, each verb answers by the contract, and DEL succeeds and leaves no record."""
    with node() as world:
        ask(world, GOOD_ENVIRON, encoded(config))
        for path in sorted((world.directory / "state").glob("*/*.json")):
            content = data.draw(damaged(path.read_bytes()))
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
        world.boot = data.draw(st.sampled_from(["boot-1", "boot-2"]))
        ask(world, {**GOOD_ENVIRON, "CNI_COMMAND": verb}, encoded(config))
        assert ask(world, {**GOOD_ENVIRON, "CNI_COMMAND": "DEL"}, encoded(config)) == 0
        left = world.journal.read(CONTAINER, "net1")
        assert left is None or left.network != config["name"]


@PROFILE
@given(st.binary(max_size=40), st.sampled_from(VERBS))
def test_any_identity(content: bytes, verb: str) -> None:
    """With any content of the state directory's id file, every verb answers by the contract."""
    with node() as world:
        (world.directory / "state" / "identity").write_bytes(content)
        ask(world, {**GOOD_ENVIRON, "CNI_COMMAND": verb}, encoded(GOOD_CONFIGS[1]))
        assert len(Store(world.directory / "state", world.directory / "locks", warn=lambda _text: None).identity()) == 32

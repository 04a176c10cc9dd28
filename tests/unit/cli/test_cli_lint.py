"""`lint` on files: which networks it finds, its findings for each key, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.pages import PAGES, ROOT, blocks
from tests.lab.samples import check_sample
from userspace_cni.cli.main import userspace_cni
from userspace_cni.cni import keys
from userspace_cni.diagnosis.networks import JudgedNetworks, Place, judge_document, judge_text

GOOD = {"cniVersion": "1.0.0", "name": "net", "type": "userspace", "host": {"engine": "ovs-dpdk", "vhost": {"mode": "client"}}}


def lint(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(userspace_cni, ["lint", *map(str, arguments)], input=stdin)


def decoded(*arguments: object, code: int = 0, stdin: str | None = None) -> Any:
    """The JSON of a call that ended with this code."""
    result = lint(*arguments, "--json", stdin=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return json.loads(result.stdout)


def told(document: Any) -> list[tuple[str, str, str]]:
    """Name, severity and key of each finding."""
    return [(each["name"], each["severity"], each["key"]) for each in document["findings"]]


def definition(config: Any, name: str = "net", **metadata: str) -> dict[str, Any]:
    """A NetworkAttachmentDefinition; `config` as text, else an object that becomes text."""
    text = config if isinstance(config, str) else json.dumps(config)
    kind = {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition"}
    return {**kind, "metadata": {"name": name, **metadata}, "spec": {"config": text}}


def changed(**changes: Any) -> dict[str, Any]:
    """A good network with some keys changed; None removes one."""
    return {key: value for key, value in (GOOD | changes).items() if value is not None}


def test_a_good_network(tmp_path: Path) -> None:
    """Exit code 0, nothing on stdout, and on stderr how many were read."""
    path = tmp_path / "net.yaml"
    path.write_text(yaml.safe_dump(definition(GOOD)))
    result = lint(path)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "checked 1 network: nothing found\n")
    assert decoded(path) == {"networks": 1, "ignored": [], "findings": []}


def test_what_adds_error_would_be(tmp_path: Path) -> None:
    """Each misspelt key is reported with file, document, network, key and code.

    Later findings are made as if it were corrected.
    """
    host = {"brigde": {"bridgeNme": "br9", "vlanid": 5}, "vhots": {"mode": "client", "sokcetfile": "../x"}}
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([{"kind": "Service", "metadata": {"name": "s"}}, definition({**GOOD, "host": host})]))
    found = decoded(path, code=1)
    assert found["ignored"] == [f"{path}: Service s"]
    assert told(found) == [
        ("refused", "error", "host.brigde"),
        ("refused", "error", "host.vhots"),
        ("refused", "error", "host.bridge.bridgeNme"),
        ("refused", "error", "host.vhost.sokcetfile"),
        ("refused", "error", "host.vhost.socketfile"),
    ]
    assert found["findings"][0] == {
        "file": str(path),
        "document": 2,
        "network": "net",
        "key": "host.brigde",
        "name": "refused",
        "severity": "error",
        "code": 7,
        "message": "key 'host.brigde' is unknown: 'host.bridge' is probably meant",
        "remedy": "correct the spelling, or remove the key",
    }
    result = lint(path)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == f"{path}: document 2: network net"
    assert result.stderr == f"checked 1 network: 5 errors\nnot looked at: {path}: Service s\n"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (changed(host={"vhost": {"mode": "srver"}}), [("refused", "error", "host.vhost.mode")]),
        (changed(host={"mtu": 3}), [("refused", "error", "host.mtu"), ("server-mode", "warning", "host.vhost.mode")]),
        (changed(host={}), [("server-mode", "warning", "host.vhost.mode")]),
        (changed(brigde={"bridgeName": "br9"}), [("refused", "error", "brigde")]),
        (changed(colour="red"), [("unknown-key", "warning", "colour")]),
        (changed(vhost={}), [("unknown-key", "warning", "vhost")]),
        (changed(ipMasq=True), [("refused", "error", "ipMasq")]),
        (changed(host={"iftype": "veth", "port": "afxdp", "mtu": 9000}), [("refused", "error", "host.mtu")]),
        (changed(host={"iftype": "veth"}, sharedDir="/x"), [("ignored-value", "warning", "sharedDir")]),
        (changed(bandwidth={"ingressBurst": 5}), [("refused", "error", "bandwidth.ingressBurst")]),
        (changed(mirrors=[{"name": "ids", "ingress": True}]), [("foreign-words", "warning", "mirrors")]),
        (changed(cniVersion="9"), [("refused", "error", "")]),
        (changed(host=[]), [("refused", "error", "host")]),
        (changed(name="-"), [("refused", "error", "")]),
        (changed(type="usersapce"), [("foreign-type", "error", "type")]),
        (
            {"cniVersion": "1.0.0", "name": "l", "plugins": [changed(name=None), changed(hots={})]},
            [("unknown-key", "warning", "")],
        ),
        ({"cniVersion": "1.0.0", "name": "l", "plugins": []}, [("bad-input", "error", "")]),
    ],
    ids=str,
)
def test_findings_of_a_network(tmp_path: Path, config: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    """Errors and warnings with their keys; the same in a definition, in a file for the runtime, and on stdin."""
    for name, text in (("a.yaml", yaml.safe_dump(definition(config))), ("a.conflist", json.dumps(config))):
        path = tmp_path / name
        path.write_text(text)
        found = [
            (name, severity, key if not key.startswith("plugins") else "") for name, severity, key in told(decoded(path, code=1))
        ]
        assert found == expected
    assert len(told(decoded("-", code=1, stdin=json.dumps(config)))) == len(expected)


def test_what_a_plugin_inherits(tmp_path: Path) -> None:
    """Name and version come from the list, from a list of versions, or from
    the definition; Multus' delegates are networks, too.
    """
    bare = {"type": "userspace"}
    configs = {
        "list.conflist": {"cniVersion": "1.0.0", "name": "l", "plugins": [{"type": "tuning"}, bare]},
        "versions.conflist": {"cniVersions": ["0.4.0", "1.1.0", "9"], "name": "l", "plugins": [bare]},
        "multus.conf": {"type": "multus", "name": "m", "delegates": [{"cniVersion": "1.0.0", "name": "d", **bare}]},
    }
    for name, config in configs.items():
        (tmp_path / name).write_text(json.dumps(config))
    (tmp_path / "nad.yaml").write_text(yaml.safe_dump(definition({"cniVersion": "1.0.0", **bare})))
    assert decoded(tmp_path) == {"networks": 4, "ignored": [], "findings": []}
    (tmp_path / "nameless.conf").write_text(json.dumps({"cniVersion": "1.0.0", **bare}))
    assert [each["message"] for each in decoded(tmp_path, code=1)["findings"]] == ["the network has no valid name"]


@pytest.mark.parametrize("name", ["a.yaml", "a.conf"])
def test_keys_that_are_given_twice(tmp_path: Path, name: str) -> None:
    """JSON readers take the last of two values: each such key is a finding with its path, in definitions and runtimes' files."""
    text = '{"cniVersion": "1.0.0", "name": "n", "type": "userspace", "type": "userspace", "host": HOST}'
    text = text.replace("HOST", '{"vhost": {"mode": "", "mode": "client"}}')
    path = tmp_path / name
    path.write_text(yaml.safe_dump(definition(text)) if name == "a.yaml" else text)
    assert told(decoded(path, code=1)) == [
        ("duplicate-key", "warning", "type"),
        ("duplicate-key", "warning", "host.vhost.mode"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (yaml.safe_dump(definition("{")), "it is not JSON"),
        (yaml.safe_dump(definition("[]")), "not a JSON object"),
        (yaml.safe_dump(definition("[" * 100_000)), "it is not JSON"),
        (yaml.safe_dump({**definition(GOOD), "spec": {"config": GOOD}}), "spec.config is no string"),
        ("a: [", "it is not YAML"),
        ("", "there is nothing in it"),
        (yaml.safe_dump({**definition(GOOD), "kind": "NetworkAttachmentDefintion"}), "has no kind"),
        (yaml.safe_dump({**definition(GOOD), "apiVersion": "k8s.cni.cncf.oi/v1"}), "is of API group"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, text: str, words: str) -> None:
    """A text that is no configuration, and an almost valid definition, are findings; other files are judged."""
    path, other = tmp_path / "a.yaml", tmp_path / "b.conf"
    path.write_text(text)
    other.write_text(json.dumps(GOOD))
    found = decoded(path, other, code=1)
    assert found["networks"] == 1
    [only] = found["findings"]
    assert words in only["message"]
    assert only["file"] == str(path)


def test_a_file_of_the_runtime_is_json(tmp_path: Path) -> None:
    """YAML and broken text in a .conf are reported as invalid JSON, because runtimes read only JSON there."""
    path = tmp_path / "a.conf"
    for text in ("type: userspace\n", '{"type": "userspace",\n\t}', '{"type"'):
        path.write_text(text)
        [only] = decoded(path, code=1)["findings"]
        assert (only["name"], only["message"].partition(":")[0]) == ("bad-input", "it is not JSON")


def test_others_are_passed_over_by_name(tmp_path: Path) -> None:
    """Other objects, networks of other types, and a definition whose configuration is on the node, are named.

    With nothing else they are an error.
    """
    path = tmp_path / "a.yaml"
    elsewhere = {**definition(GOOD, "far"), "spec": {}}
    others = [{"kind": "Pod", "metadata": {"name": "p"}}, definition({"type": "macvlan", "name": "m"}, "mac"), elsewhere]
    path.write_text(yaml.safe_dump({"kind": "List", "items": others}))
    found = decoded(path, code=1)
    assert [each.removeprefix(f"{path}: ") for each in found["ignored"]] == [
        "Pod p",
        "mac (CNI type macvlan)",
        "NetworkAttachmentDefinition far (without spec.config: a file on the node has it)",
    ]
    assert told(found) == [("nothing-judged", "error", "")]
    path.write_text(yaml.safe_dump({"kind": "List", "items": [*others, definition(GOOD)]}))
    assert decoded(path)["networks"] == 1


def test_usage(tmp_path: Path) -> None:
    """A missing file, a directory without files, and no file at all are wrong usage; --help says what is read."""
    assert lint(tmp_path / "none.conf").exit_code == 2
    assert lint().exit_code == 2
    assert lint(tmp_path).exit_code == 2
    assert "has no file *.yaml, *.yml, *.json, *.conf or *.conflist" in lint(tmp_path).stderr
    text = lint("--help").output
    assert [word for word in ("spec.config", ".conflist", "Exit code", "--json") if word not in text] == []
    assert "lint" in CliRunner().invoke(userspace_cni, ["--help"]).output


def test_control_characters_do_not_reach_a_terminal(tmp_path: Path) -> None:
    """Control characters of a file are printed in escaped form."""
    path = tmp_path / "a.conf"
    path.write_text(json.dumps(changed(**{"\x1b[31mred": 1})))
    assert "\x1b" not in lint(path).stdout


def test_the_documents_networks_are_clean() -> None:
    """The example networks of README and pages have no findings; the one of ovs-cni has the note that says what it becomes."""
    found = [(page.name, block.text) for page in PAGES for block in blocks(page) if "NetworkAttachmentDefinition" in block.text]
    assert {"README.md", "network.md", "from-ovs-cni.md"} <= {name for name, _ in found}
    for _, network in found:
        other = '"type": "ovs"' in network
        document = decoded("-", stdin=network)
        assert document["networks"] == (not other)
        assert told(document) == [("ovs-cni-network", "note", "type")] * other


def test_outputs_that_pages_about_moving_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `lint` says of a network of the former plugin, and of one of ovs-cni, is what the pages show."""
    monkeypatch.chdir(tmp_path)
    host = {
        "engine": "ovs-dpdk",
        "iftype": "vhostuser",
        "netType": "bridge",
        "vhost": {"mode": "client"},
        "brigde": {"bridgeName": "br4"},
    }
    former = {"cniVersion": "0.3.1", "name": "dpdk-net", "type": "userspace", "logFile": "/var/log/dpdk-net.log", "host": host}
    Path("net.yaml").write_text(yaml.safe_dump(definition(former, "dpdk-net")))
    check_sample(ROOT / "docs" / "from-intel.md", "userspace-cni lint net.yaml", lint("net.yaml").output)
    page = ROOT / "docs" / "from-ovs-cni.md"
    [network] = [each.text for each in blocks(page) if '"type": "ovs"' in each.text]
    Path("web.yaml").write_text(network.replace('"vlan": 100', '"vlan": 100, "ofport_request": 7'))
    messages = [finding["message"] for finding in decoded("web.yaml")["findings"]]
    command = "userspace-cni lint --json web.yaml | jq --raw-output '.findings[].message'"
    check_sample(page, command, "".join(f"{message}\n" for message in messages))


@settings(max_examples=200)
@given(st.text(max_size=30) | st.text(alphabet='{}[]":, \nuserspacetype', max_size=60))
def test_any_text(text: str) -> None:
    """Any text is judged, or a finding says why not."""
    judged = JudgedNetworks()
    judge_text(judged, Place("x", 1), text)
    judge_document(judged, "x", 1, definition(text))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*keys.TOP, *keys.PLACES["host"], "hosts", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from([*keys.TOP, *keys.STANDARD, "plugins", "delegates", "hsots", "kind", "spec"]), JSON, max_size=6
    )
)
def test_any_configuration(config: dict[str, Any]) -> None:
    """Values of any type at any place of a network make findings, and never a failure."""
    for content in (config, config | {"type": "userspace"}, {**config, **GOOD}, {"plugins": [config], "name": config}):
        judge_document(JudgedNetworks(), "x", 1, content)

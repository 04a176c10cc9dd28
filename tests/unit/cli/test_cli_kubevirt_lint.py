"""`kubevirt lint` on files: its input, its findings and its exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kubevirt.lint_files import Files
from userspace_cni.cli import manifest_files
from userspace_cni.cli.main import userspace_cni


def lint(*arguments: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(userspace_cni, ["kubevirt", "lint", *map(str, arguments)], input=stdin)


def decoded(*arguments: object, code: int = 0, stdin: str | bytes | None = None) -> Any:
    """The JSON of a call that ended with this code."""
    result = lint(*arguments, "--json", stdin=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return json.loads(result.stdout)


def names(told: Any) -> list[tuple[str, str]]:
    """Name and severity of each finding."""
    return [(each["name"], each["severity"]) for each in told["findings"]]


@pytest.fixture
def files() -> Files:
    """Manifests without any fault."""
    return Files()


def text_of(files: Files) -> str:
    """All of them as one YAML stream."""
    return yaml.safe_dump_all([files.kubevirt, files.network, files.vm])


def test_a_vm_of_a_fork_alone() -> None:
    """`vhostuser: {}` as an interface's binding is an error without the network's file, and exit code 1."""
    assert names(decoded(Path(__file__).parent / "data" / "vm-of-a-fork.yaml", code=1)) == [("unknown-binding", "error")]


def test_good_files(tmp_path: Path, files: Files) -> None:
    """Several documents in one file, none with a finding: exit code 0, and what was checked on stderr."""
    path = tmp_path / "all.yaml"
    path.write_text(text_of(files))
    result = lint(path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "checked 1 KubeVirt, 1 NetworkAttachmentDefinition, 1 VirtualMachine: nothing found\n"
    assert decoded(path) == {
        "checked": {"KubeVirt": 1, "NetworkAttachmentDefinition": 1, "VirtualMachine": 1},
        "ignored": [],
        "findings": [],
    }


def test_the_generator_s_output_is_clean() -> None:
    """What `kubevirt manifests` prints can be piped into it."""
    made = CliRunner().invoke(userspace_cni, ["kubevirt", "manifests", "--mtu", "9000", "--queues", "2"])
    assert made.exit_code == 0
    assert decoded("-", stdin=made.stdout)["findings"] == []


def test_findings_are_grouped_by_object(tmp_path: Path, files: Files) -> None:
    """Below the object: severity, name and message, where in it, what to do; errors and warnings end with 1."""
    files.nic["model"] = "e1000"
    files.spec(mtu=1500)
    path = tmp_path / "all.yaml"
    path.write_text(text_of(files))
    result = lint(path)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == f"{path}: VirtualMachine nfv/dpdk-vm"
    assert lines[1].split()[:2] == ["error", "wrong-model:"]
    assert lines[2].split() == ["at", "spec.template.spec.domain.devices.interfaces[1]"]
    assert lines[3].split()[0] == "do"
    assert lines[4].split()[:2] == ["warning", "mtu-mismatch:"]
    assert result.stderr.endswith(": 1 error, 1 warning\n")


def test_notes_do_not_fail(tmp_path: Path, files: Files) -> None:
    """A VM without huge pages gives notes only, and ends with 0."""
    files.domain["memory"] = {"guest": "1Gi"}
    path = tmp_path / "vm.json"
    path.write_text(json.dumps(files.vm))
    told = decoded(path)
    assert sorted(names(told)) == [("no-hugepages", "note"), ("not-given", "note")]
    assert "2 notes" in lint(path).stderr


def test_files_together(tmp_path: Path, files: Files) -> None:
    """A VM in one file is judged with the network in another; a directory is the files in it."""
    files.spec(mtu=9200)
    for name, content in (("a.yaml", files.kubevirt), ("b.json", files.network), ("c.yml", files.vm), ("d.txt", "no")):
        (tmp_path / name).write_text(json.dumps(content))
    assert names(decoded(tmp_path, code=1)) == [("mtu-mismatch", "error")]
    assert names(decoded(*sorted(tmp_path.glob("[abc].*")), code=1)) == [("mtu-mismatch", "error")]


def test_stdin_and_xml() -> None:
    """A domain definition is recognised by its beginning, from stdin, too."""
    told = decoded("-", stdin="\n<domain><devices><interface type='vhostuser'/></devices></domain>", code=1)
    assert ("no-shared-memory", "error") in names(told)
    assert {each["where"] for each in told["findings"]} == {"stdin: domain XML"}


def test_other_objects_are_named(tmp_path: Path) -> None:
    """Objects that are not judged are named on stderr; where there are no others, a warning says that nothing was judged."""
    path = tmp_path / "a.yaml"
    path.write_text("\n---\n".join(f"kind: Service\nmetadata: {{name: s{number}}}" for number in range(7)))
    result = lint(path)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[:2] == [
        "all files",
        "  warning  not-given: nothing in them is for KubeVirt; nothing was checked",
    ]
    assert "checked nothing that is for KubeVirt" in result.stderr
    assert f"not looked at: {path}: Service s0, " in result.stderr
    assert result.stderr.endswith(" and 2 more\n")


def test_others_beside_are_no_failure(tmp_path: Path, files: Files) -> None:
    """Other objects beside a VM's are ignored; with only an empty list nothing was judged."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"kind": "Service"}, files.kubevirt, files.network, files.vm]))
    assert decoded(path)["findings"] == []
    path.write_text("[]")
    assert names(decoded(path, code=1)) == [("not-given", "warning")]


def test_a_misspelt_kind_fails(tmp_path: Path) -> None:
    """An object of a kind that KubeVirt's group lacks is one warning of its own."""
    path = tmp_path / "a.yaml"
    path.write_text("apiVersion: kubevirt.io/v1\nkind: VirtualMachin\nmetadata: {name: v}\n")
    assert names(decoded(path, code=1)) == [("unknown-kind", "warning")]


def test_the_generator_s_json_can_be_read() -> None:
    """`kubevirt manifests --json` prints a list, whose items are judged."""
    made = CliRunner().invoke(userspace_cni, ["kubevirt", "manifests", "--json"])
    told = decoded("-", stdin=made.stdout)
    assert (sum(told["checked"].values()), told["findings"]) == (3, [])


def test_directories_are_entered(tmp_path: Path, files: Files) -> None:
    """At any depth and sorted; not hidden ones, nor links to directories; and no file is read twice."""
    files.nic["model"] = "e1000"
    below = tmp_path / "b" / "deep"
    below.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (below / "vm.yaml").write_text(yaml.safe_dump(files.vm))
    (tmp_path / ".git" / "vm.yaml").write_text("not: [YAML")
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([files.kubevirt, files.network]))
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "nowhere.yaml").symlink_to("nowhere.yaml")
    told = decoded(tmp_path, below, tmp_path / "a.yaml", code=1)
    assert names(told) == [("wrong-model", "error")]
    assert told["findings"][0]["where"].startswith(f"{below / 'vm.yaml'}: ")
    assert told["checked"] == {"KubeVirt": 1, "NetworkAttachmentDefinition": 1, "VirtualMachine": 1}


def test_only_what_has_an_end_is_read(tmp_path: Path) -> None:
    """A named pipe without a writer is wrong usage and does not hang; a pipe that is already open is read."""
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    refused = lint(pipe)
    assert refused.exit_code == 2
    assert "not a regular file" in refused.stderr
    assert lint("/dev/zero").exit_code == 2
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "w") as file:
            file.write("kind: KubeVirt")
        assert decoded(f"/dev/fd/{reader}")["checked"] == {"KubeVirt": 1}
    finally:
        os.close(reader)


TWICE = {
    "YAML": ("kind: KubeVirt\nspec: {}\nmetadata:\n  name: a\nspec: {}\n", "'spec'", "lines 2 and 5"),
    "nested": ("kind: KubeVirt\nspec:\n  a: 1\n  'a': 2\n", "'a'", "lines 3 and 4"),
    "JSON": ('{"kind": "KubeVirt",\n "kind": "Pod"}', "'kind'", "lines 1 and 2"),
    "in a list": ('[{"a": 1}, {"b": 1, "b": 2}]', "'b'", "line 1"),
}


@pytest.mark.parametrize("case", TWICE)
def test_a_key_given_twice(tmp_path: Path, case: str) -> None:
    """A key that is given twice is a finding with key and lines: one value would be dropped."""
    text, key, lines = TWICE[case]
    path = tmp_path / "a.yaml"
    path.write_text(text)
    told = decoded(path, code=1)
    assert names(told) == [("bad-input", "error")]
    assert key in told["findings"][0]["message"]
    assert told["findings"][0]["message"].endswith(lines)


def test_keys_that_are_merged_are_not_given_twice(tmp_path: Path) -> None:
    """A key may be merged and written, and one name may be in several objects."""
    path = tmp_path / "a.yaml"
    path.write_text("kind: KubeVirt\nx: &x {a: 1, b: 2}\ny: &y {c: 1}\nspec: {<<: *x, <<: *y, a: 2}\nz: [*x, *x]\n")
    assert decoded(path)["findings"] == []


@pytest.mark.parametrize(
    "text", ["metadata:\n  name: {{ .Values.name }}\n", "{{- if .Values.vm }}\nkind: Pod\n{{- end }}\n", "{% if a %}\na"]
)
def test_a_template_is_reported_as_one(tmp_path: Path, text: str) -> None:
    """What has to be rendered first is no mistake in YAML."""
    path = tmp_path / "a.yaml"
    path.write_text(text)
    [only] = decoded(path, code=1)["findings"]
    assert "template" in only["message"]
    assert "render it first" in only["remedy"]


def test_keys_that_send_the_port_elsewhere(tmp_path: Path) -> None:
    """A misspelt key is an error; an unknown key in our blocks, or a block in the wrong place, a warning; others' keys a note."""
    path = tmp_path / "net.yaml"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"host": {"bridge": {"name": "br9"}}}, "warning"),
        ({"container": {"enginee": "x"}}, "error"),
        ({"hosts": {}}, "error"),
        ({"host": {"vhost": {"mode": "srver"}}}, "error"),
        ({"vhost": {"mode": "client"}}, "warning"),
        ({"bridge": {"bridgeName": "br9"}}, "warning"),
        ({"colour": "red"}, "note"),
        ({"sharedDir": "/var/run/x"}, "note"),
    ]
    for keys, severity in cases:
        spoilt = Files()
        spoilt.config(**keys)
        path.write_text(yaml.safe_dump(spoilt.network))
        name = "network-refused" if severity == "error" else "ignored-option"
        assert names(decoded(path, code=int(severity != "note"))) == [(name, severity)], keys


def test_usage(tmp_path: Path) -> None:
    """A file that is not there, a directory without files, and no file at all are wrong usage."""
    assert lint(tmp_path / "none.yaml").exit_code == 2
    assert lint().exit_code == 2
    empty = lint(tmp_path)
    assert empty.exit_code == 2
    assert "has no file *.yaml" in empty.stderr


def test_what_the_plugin_refuses(tmp_path: Path, files: Files) -> None:
    """A network is read as the plugin reads it: its own error is a finding, and what it ignores is a note."""
    path = tmp_path / "net.yaml"
    files.config(bandwidth={"ingressRate": 1}, colour="red")
    path.write_text(yaml.safe_dump(files.network))
    told = decoded(path, code=1)
    assert names(told) == [("network-refused", "error"), ("ignored-option", "note")]
    assert "bandwidth" in told["findings"][0]["message"]
    assert "colour" in told["findings"][1]["message"]
    files.config(bandwidth=None, colour=None, cniVersion="9.9.9")
    path.write_text(yaml.safe_dump(files.network))
    assert names(decoded(path, code=1)) == [("network-refused", "error")]


def test_one_mistake_is_one_finding(tmp_path: Path, files: Files) -> None:
    """Server mode, which the plugin refuses for VMs too, is one finding."""
    path = tmp_path / "net.yaml"
    files.config(host={"vhost": {"mode": "server"}})
    path.write_text(yaml.safe_dump(files.network))
    assert names(decoded(path, code=1)) == [("server-mode", "error")]


def test_a_conflist_as_multus_gives_it(tmp_path: Path, files: Files) -> None:
    """Name and version of a list are those of its plugins, and a network without a name has its object's."""
    config = json.loads(files.network["spec"]["config"])
    for key in ("name", "cniVersion"):
        config.pop(key)
    files.network["spec"]["config"] = json.dumps({"cniVersion": "1.0.0", "plugins": [config]})
    path = tmp_path / "net.yaml"
    path.write_text(yaml.safe_dump(files.network))
    assert decoded(path)["findings"] == []


BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + number)}: &{chr(98 + number)} [*{chr(97 + number)}, *{chr(97 + number)}, *{chr(97 + number)}]\n"
    for number in range(20)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{chr(98 + number)}: &{chr(98 + number)}\n  <<: [{', '.join([f'*{chr(97 + number)}'] * 9)}]\n" for number in range(12)
)
UNREADABLE = {
    "nothing": b"",
    "blanks": b"\n---\n",
    "text": b"just words",
    "JSON text": b'"words"',
    "torn": b"{a: [1, 2",
    "tabs": b"a:\n\t- b",
    "not UTF-8": b"a: \xff\xfe",
    "NUL": b"a: \0",
    "deep": b"[" * 200_000,
    "deep JSON": b'{"a":' * 100_000,
    "deep maps": b"".join(b" " * number + b"a:\n" for number in range(150)),
    "aliases": BOMB.encode(),
    "merges": MERGES.encode(),
    "an alias to itself": b"a: &a [*a]",
    "a tag of Python": b"a: !!python/object/apply:os.system [true]",
    "a day that is none": b"a: 2001-99-99",
    "many digits": b"a: " + b"9" * 5000,
    "an unhashable key": b"{[a]: 1}",
}


@pytest.mark.parametrize("raw", UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_a_finding(tmp_path: Path, raw: bytes) -> None:
    """An unreadable file of any content is a finding, and the other files are judged."""
    path, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    path.write_bytes(raw)
    other.write_text("kind: KubeVirt\nspec: {configuration: {migrations: {allowPostCopy: true}}}")
    told = decoded(path, other, code=1)
    assert names(told) == [("bad-input", "error"), ("post-copy", "warning")]
    assert told["findings"][0]["where"] == str(path)


def test_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file beyond the limit is not read."""
    monkeypatch.setattr(manifest_files, "FILE_MAX", 10)
    path = tmp_path / "a.yaml"
    path.write_text("kind: KubeVirt")
    assert names(decoded(path, code=1)) == [("bad-input", "error")]


def test_control_characters_do_not_reach_a_terminal(tmp_path: Path, files: Files) -> None:
    """Control characters of a file are printed in escaped form."""
    files.nic["model"] = "\x1b[31mred"
    path = tmp_path / "a.yaml"
    path.write_text(text_of(files))
    assert "\x1b" not in lint(path).stdout


def test_binding(tmp_path: Path, files: Files) -> None:
    """--binding selects the interfaces that are judged."""
    files.nic["model"] = "e1000"
    path = tmp_path / "a.yaml"
    path.write_text(text_of(files))
    assert names(decoded(path, "--binding", "vhostuser", code=1)) == [("wrong-model", "error")]
    assert names(decoded(path, "--binding", "other")) == []


@settings(max_examples=100)
@given(st.binary(max_size=60) | st.text(alphabet="{}[]:-&*<>|'\"\n\t !%@#a1", max_size=60).map(str.encode))
def test_any_bytes(raw: bytes) -> None:
    """Any bytes on stdin end with 0 or 1, and with valid JSON."""
    result = lint("-", "--json", stdin=raw)
    assert result.exit_code in (0, 1)
    json.loads(result.stdout)

"""`support` beside an agent and a switch: what is in the archive, what is not, and what becomes of it where something hangs."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from tests.agent.living import LiveNode
from tests.cni.spec import PORT, succeeded, switch_of
from tests.cni.test_cli_node import cli, decoded
from tests.lab.kube.pods import Pod
from tests.lab.node.node import CONTAINER
from tests.lab.switch.switch import FOR_EVER_S, pause, wait_until

PROGRAMS = f"{os.defpath}:/usr/sbin"
"""nft(8) is there."""


def planted(place: str) -> str:
    """A secret that is nowhere else; no pattern knows its form."""
    return f"pl4nted-{place}-{os.urandom(5).hex()} x/+é"


class Archive:
    """What an archive has: its files by their paths in it, and its index by their paths."""

    def __init__(self, raw: bytes) -> None:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as tar:
            members = tar.getmembers()
            self.files = {each.name.partition("/")[2]: self._content(tar, each) for each in members if each.isfile()}
        self.names = {each.name for each in members}
        self.modes = {each.mode for each in members if each.isfile()}
        self.about = json.loads(self.files["index.json"])
        self.items = {each["what"]: each for each in self.about["items"]}

    @staticmethod
    def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
        file = tar.extractfile(member)
        assert file
        return file.read()

    def json(self, path: str) -> Any:
        return json.loads(self.files[path])

    def problems(self) -> dict[str, str]:
        return {what: each["problem"] for what, each in self.items.items() if each["problem"]}


def made(live: LiveNode, path: Path, **variables: str) -> Archive:
    cli(live, "support", "--output", str(path), code=0, PATH=PROGRAMS, **variables)
    return Archive(path.read_bytes())


def forms(secret: str) -> Iterator[str]:
    """As it is, as URLs and JSON spell it, in hexadecimal, and in base64 wherever it may begin."""
    raw = secret.encode()
    yield from (secret, quote(secret), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], raw.hex())
    yield secret.partition(" ")[0]
    for before in (b"", b"x", b"xy"):
        cut = {0: 0, 1: 2, 2: 3}[len(before)]
        yield base64.b64encode(before + raw).decode().rstrip("=")[cut:-1]
        yield base64.urlsafe_b64encode(before + raw).decode().rstrip("=")[cut:-1]


def test_what_is_in_it(live: LiveNode, sandbox: str, tmp_path: Path) -> None:
    """Commands, pages, metrics, logs, records, switch, kernel and machine are there, each in the index; nothing is missing."""
    live.start(FIRST_S=FOR_EVER_S)
    pod = Pod()
    live.empty_dir(pod.uid)
    network = live.network("1.0.0", ipam=live.host_local())
    added = succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    path = tmp_path / "a.tar.gz"
    told = decoded(live, "support", "--output", str(path), PATH=PROGRAMS)
    archive = Archive(path.read_bytes())
    assert archive.problems() == {}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (archive.modes, told["file"], told["bytes"]) == ({0o600}, str(path), path.stat().st_size)
    assert told["items"] == archive.about["items"]
    listed = {each["path"] for each in decoded(live, "support", "--list")["items"]}
    assert {each["path"] for each in archive.about["items"]} - {""} == set(archive.files) - {"README.txt", "index.json"}
    assert set(archive.files) - {"README.txt", "index.json"} <= listed
    [address] = (each["address"] for each in added["ips"])
    assert archive.json("commands/list.json")["answer"][0]["addresses"] == [address]
    assert archive.json("commands/status.json")["answer"]["agent"]["ready"]
    assert archive.json("agent/attachments.json")[0]["name"] == "default/app/net1"
    assert b"userspace_cni_vswitchd_alive 1" in archive.files["agent/metrics.txt"]
    assert b"the agent serves" in archive.files["agent/agent.log"]
    assert b"Open vSwitch" in archive.files["switch/version.txt"]
    assert b"pmd thread" in archive.files["switch/dpif-netdev-pmd-stats-show.txt"]
    assert b"bridge br-test" in archive.files["switch/ovs.log"] or b"vswitchd" in archive.files["switch/ovs.log"]
    [interface] = (each for each in archive.json("switch/tables.json")["Interface"] if each["name"] == PORT)
    assert interface["external_ids"]["container-id"] == CONTAINER
    assert interface["options"]["vhost-server-path"] == switch_of(live).interface(PORT)["options"]["vhost-server-path"]
    records = [json.loads(line) for line in archive.files["node/records.jsonl"].splitlines()]
    [record] = (
        each["content"]["value"] for each in records if f"{CONTAINER}@net1" in each["file"] and "attachments" in each["file"]
    )
    assert record["network"] == network["name"]
    [lease] = (each for each in record["steps"] if each["step"] == "lease")
    assert json.loads(lease["stdin"])["ipam"] == network["ipam"]
    assert "lo" in {each["name"] for each in archive.json("kernel/node.json")["links"]}
    assert archive.json("agent/process.json")["pid"] == live.pid
    assert archive.json("switch/process.json")["pid"] == switch_of(live).vswitchd_pid
    assert archive.json("machine.json")["memory"][0].startswith("MemTotal")
    succeeded(live.run("DEL", network, sandbox, CNI_ARGS=pod.args))


def test_no_secret_is_in_it(live: LiveNode, sandbox: str, tmp_path: Path) -> None:
    """Whatever secret is in a place that is read, and in whatever form, is not in the archive; what is beside it is."""
    secrets: dict[str, str] = {}

    def secret(place: str) -> str:
        secrets[place] = planted(place)
        return secrets[place]

    kubeconfig = tmp_path / "kubeconfig"
    user = {"token": secret("user-token"), "username": "web", "password": secret("user-password")}
    plugin = {
        "command": "login",
        "args": ["--as", secret("exec-argument")],
        "env": [{"name": "K", "value": secret("exec-variable")}],
    }
    users = [{"name": "a", "user": user}, {"name": "b", "user": {"exec": plugin, "client-key-data": secret("key-data")}}]
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "users": users}))
    live.settings |= {"USERSPACE_CNI_NETCONF_KUBECONFIG": "never", "USERSPACE_CNI_KUBECONFIG_DIRS": str(tmp_path)}
    key = tmp_path / "ovn.key"
    key.write_text(f"-----BEGIN PRIVATE KEY-----\n{secret('private-key')}\n-----END PRIVATE KEY-----\n")
    live.settings["USERSPACE_CNI_OVN_PRIVATE_KEY"] = str(key)
    live.start(FIRST_S=FOR_EVER_S)
    pod = Pod()
    live.empty_dir(pod.uid)
    ipam = {**live.host_local(), "zone": secret("ipam-unknown"), "apiPassword": secret("ipam-password"), "address": "10.9.9.9/24"}
    network = live.network("1.0.0", ipam=ipam, kubeconfig=str(kubeconfig), args={"cni": {"x": secret("args")}})
    args = f"{pod.args};ROLE={secret('cni-args').split()[0]}"
    succeeded(live.run("ADD", network, sandbox, CNI_ARGS=args))
    _plant_in_rows(live, secret)
    _plant_in_state(live, network, secret)
    _plant_in_logs(live, secrets, secret)
    given = {"DB_PASSWORD": secret("variable"), "PROXY": f"http://me:{quote(secret('url'), safe='')}@proxy:3128"}
    archive = made(live, tmp_path / "a.tar.gz", **given)
    everything = b"\n".join([*archive.files.values(), *(name.encode() for name in archive.names)]).decode("utf-8", "replace")
    found = {place: form for place, value in secrets.items() for form in forms(value) if form in everything}
    assert found == {}
    assert len(secrets) > 25
    for number in range(len(LINES)):
        assert f"line {number} is here" in everything
    for beside in ("default/app/net1", CONTAINER, "planted-file", "db-password", "10.9.9.9/24", "br-test", "planted-spool"):
        assert beside in everything, beside
    assert archive.about["items"]
    succeeded(live.run("DEL", network, sandbox, CNI_ARGS=args))


LINES = (
    "Authorization: Bearer {}",
    "password={}",
    'stdin {{"ipam": {{"token": "{}"}}}}',
    "exec login --client-secret '{}'",
    "get https://admin:{}@registry.example/v2/",
    "api_key: '{}'",
)
"""Lines of a log, with secrets that no other place has."""


def _plant_in_rows(live: LiveNode, secret: Any) -> None:
    switch = switch_of(live)
    switch.vsctl(
        "--no-wait",
        "--",
        "set", "Interface", PORT, f"external_ids:db-password={json.dumps(secret('row-password'))}",
        f"external_ids:note={json.dumps(secret('row-unknown'))}",
        "--",
        "set", "Bridge", "br-test", f"other_config:vpn-psk={json.dumps(secret('row-psk'))}",
    )  # fmt: skip
    switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", f"other_config:dpdk-token={json.dumps(secret('row-option'))}")
    switch.vsctl("--no-wait", "set-ssl", f"/etc/{secret('tls-key')}.pem", "/etc/cert.pem", "/etc/ca.pem")


def _plant_in_state(live: LiveNode, network: Mapping[str, Any], secret: Any) -> None:
    """A record that was put aside, whole and cut off; one that is no record; and a spooled call."""
    quarantine = live.state / "quarantine"
    quarantine.mkdir(exist_ok=True)
    whole = json.dumps({"key": "planted-file", "value": {"ipam": {"key1": secret("quarantine")}, "x": secret("quarantine-x")}})
    (quarantine / "attachments-planted-file.1").write_text(whole)
    (quarantine / "attachments-planted-file.2").write_text(whole[:-9])
    (quarantine / "planted-file.3").write_text(f"no record: {secret('quarantine-text')}")
    live.spool.mkdir(exist_ok=True)
    body = json.dumps({**network, "ipam": {"pw": secret("spool-network")}})
    head = f"POST /api/v1/del HTTP/1.1\r\nCni-Containerid: planted-spool\r\nCni-Args: A={secret('spool-args')}\r\n\r\n"
    (live.spool / ".planted-spool").write_text(head + body)


def _plant_in_logs(live: LiveNode, secrets: Mapping[str, str], secret: Any) -> None:
    """Lines that look like it, and lines with what is known from elsewhere, in other forms."""
    log = [f"line {number} is here: {line}" for number, line in enumerate(LINES)]
    lines = [line.format(secret(f"log-{number}").replace(" ", "_").replace("/", "_")) for number, line in enumerate(log)]
    known = secrets["user-token"].encode()
    lines += [f"blob {base64.b64encode(b'a' + known).decode()} and {known.hex()}", f"url {quote(known, safe='')}"]
    lines += [f"plain {secrets['exec-argument']} {secrets['private-key']} {secrets['ipam-password']}"]
    for log_file in (live.log, Path(switch_of(live).rundir) / "ovs-vswitchd.log"):
        with log_file.open("a") as file:
            file.write("\n".join(["", *lines, ""]))


def test_a_switch_that_hangs(live: LiveNode, sandbox: str, tmp_path: Path) -> None:
    """One question to ovs-vswitchd runs out of time, and no other is asked; it is named, and the rest is there."""
    live.start(FIRST_S=FOR_EVER_S)
    succeeded(live.run("ADD", live.network(), sandbox))
    switch_of(live).pause_vswitchd()
    try:
        archive = made(live, tmp_path / "a.tar.gz")
    finally:
        switch_of(live).resume_vswitchd()
    problems = {what: each for what, each in archive.problems().items() if what.startswith("ovs-appctl ")}
    assert "no answer" in problems.pop("ovs-appctl version")
    assert len(problems) >= 9
    assert {each.partition(" (")[0] for each in problems.values()} == {"not asked: ovs-vswitchd did not answer before"}
    assert archive.json("switch/liveness.json")["state"] == "silent"
    assert archive.json("switch/tables.json")["Interface"]
    succeeded(live.run("DEL", live.network(), sandbox))


def test_an_agent_that_is_stopped(live: LiveNode, tmp_path: Path) -> None:
    """Its pages are missing, and its process is named as one that lives; its log and what others say are there."""
    live.start(FIRST_S=FOR_EVER_S)
    pause(live.pid)
    try:
        archive = made(live, tmp_path / "a.tar.gz")
    finally:
        os.kill(live.pid, signal.SIGCONT)
    problems = [each for what, each in archive.problems().items() if what.startswith("the agent's page")]
    assert len(problems) >= 6
    assert all(f"process {live.pid}" in each for each in problems)
    assert b"the agent starts" in archive.files["agent/agent.log"]
    assert archive.json("switch/liveness.json")["state"] == "alive"


def test_nothing_runs(live: LiveNode, tmp_path: Path) -> None:
    """Without agent and with a dead ovs-vswitchd an archive is made, which says so."""
    switch_of(live).kill_vswitchd()
    try:
        archive = made(live, tmp_path / "a.tar.gz")
    finally:
        switch_of(live).restart_vswitchd()
    assert "no such socket" in archive.problems()["the agent's page /healthz"]
    assert archive.json("switch/liveness.json")["state"] == "dead"
    assert archive.json("commands/status.json")["exit code"] in (1, 3)


def test_whole_or_not_at_all(live: LiveNode, tmp_path: Path) -> None:
    """No file is replaced, none is left of a command that is killed, and a full disk leaves none; stdout has all of it."""
    path = tmp_path / "a.tar.gz"
    path.write_text("mine")
    refused = cli(live, "support", "--output", str(path), code=2)
    assert "exists already" in refused.stderr
    assert path.read_text() == "mine"
    assert "nothing can be written" in cli(live, "support", "--output", f"{tmp_path}/none/a.tar.gz", code=2).stderr
    argv = [sys.executable, "-m", "userspace_cni", "support"]
    done = subprocess.run([*argv, "--output", "-"], env=live.environ, capture_output=True, check=True)
    assert Archive(done.stdout).files["README.txt"]
    path.unlink()
    with subprocess.Popen([*argv, "--output", str(path)], env=live.environ, stderr=subprocess.PIPE) as process:
        tasks = Path(f"/proc/{process.pid}/task")
        wait_until(lambda: any(each.read_text() for each in tasks.glob("*/children")), what="a command of ours runs")
        process.kill()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([*argv, "--output", "/dev/full/a.tar.gz"], env=live.environ, capture_output=True, check=True)

"""Items 1 to 15 of the specification's checklist: what the runtime sees of the process."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import (
    PORT,
    SUPPORTED,
    away,
    finish,
    ipam,
    paused_vswitchd,
    refused,
    scripted,
    start,
    succeeded,
    switch_of,
    without,
)
from tests.lab.node.node import CONTAINER, Node
from tests.lab.runtimes.runtime import Call, call
from tests.lab.switch.switch import wait_until

ANYWHERE = {"CNI_CONTAINERID": "c1", "CNI_NETNS": "/absent", "CNI_IFNAME": "net1", "CNI_PATH": "/opt/cni/bin"}


@pytest.fixture
def node_kind() -> type[Node]:
    """The plugin is started as a runtime starts it, by its launcher."""
    return Node


def test_001_exit_status(bare_node: Node) -> None:
    """Success ends with 0, and every handled failure, whatever its code, with 1."""
    assert bare_node.run("VERSION", b"").status == 0
    network = bare_node.network()
    wrong: list[tuple[str, Any]] = [
        ("NOPE", network),
        ("DEL", b"{"),
        ("DEL", {**network, "name": ""}),
        ("DEL", {**network, "cniVersion": "9.9.9"}),
        ("CHECK", network),
        ("STATUS", network),
    ]
    calls = [bare_node.run(command, stdin) for command, stdin in wrong]
    assert [made.status for made in calls] == [1] * len(calls)
    assert [made.code for made in calls] == [4, 6, 7, 1, 4, 50]


def test_002_one_error_object_on_stdout(bare_node: Node) -> None:
    """A failure is one JSON object on stdout with cniVersion, code, msg and details of the right types."""
    error = refused(bare_node.run("CHECK", bare_node.network("1.0.0"), "/absent"), 4)
    assert error.keys() == {"cniVersion", "code", "msg", "details"}
    assert error["cniVersion"] == "1.0.0"
    assert type(error["code"]) is int
    assert all(isinstance(error[key], str) and error[key] for key in ("msg", "details"))
    assert refused(bare_node.run("NOPE", b"{"), 4)["cniVersion"] == SUPPORTED[-1]


def test_003_nothing_else_on_stdout(node: Node, sandbox: str) -> None:
    """Warnings, debug messages and a delegate's output stay out of stdout, which is one document in success and failure."""
    delegate = scripted(node).tell("*", stderr="chatter\n")
    delegate.tell("ADD", stderr="chatter\n", answer={"ips": [{"address": "10.1.2.3/24"}]})
    network = node.network(ipam=ipam(delegate), logLevel="verbose", unheard="of", logFile="/dev/stdout")
    added = node.run("ADD", network, sandbox)
    succeeded(added)
    assert b"unheard" in added.stderr
    assert b"chatter" in added.stderr
    refused(node.run("ADD", network, sandbox), 101)
    succeeded(node.run("DEL", network, sandbox))


def test_004_never_a_result_and_an_error(node: Node, sandbox: str) -> None:
    """ADD in the host's own namespace, and one that fails after addresses were leased, print an error and no result."""
    network = node.network("1.0.0", ipam=node.host_local())
    for made, code in ((node.run("ADD", network, "/proc/self/ns/net"), 8), (node.run("ADD", network, sandbox, **away(node)), 11)):
        assert not refused(made, code).keys() & {"interfaces", "ips", "routes", "dns"}
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}


def test_005_success_prints_a_result_for_add_only(node: Node, sandbox: str) -> None:
    """ADD prints one result object; CHECK, GC, STATUS and DEL succeed in silence."""
    network = node.network()
    result = succeeded(node.run("ADD", network, sandbox))
    assert result["interfaces"]
    valid = [{"containerID": CONTAINER, "ifname": "net1"}]
    for verb, keys in (
        ("STATUS", {}),
        ("CHECK", {"prevResult": result}),
        ("GC", {"cni.dev/valid-attachments": valid}),
        ("DEL", {}),
    ):
        assert node.run(verb, {**network, **keys}, sandbox).stdout == b""
    assert node.leftovers() == {}


def test_006_the_diagnosis_is_in_the_details(bare_node: Node, sandbox: str) -> None:
    """Log lines go to stderr; the error itself says what to look at, because libcni drops stderr on failure."""
    failed = bare_node.run("ADD", bare_node.network(), sandbox)
    refused(failed, 11, bare_node.environ["USERSPACE_CNI_OVSDB"])
    assert b" level=error " in failed.stderr
    assert b" verb=ADD network=net container=" in failed.stderr
    assert failed.document["details"]


def test_007_an_unexpected_exception_is_999(bare_node: Node, tmp_path: Path) -> None:
    """An unexpected failure (here: no memory for stdin) is code 999 with a short hint, not a traceback."""
    huge = tmp_path / "stdin"
    with huge.open("wb") as file:
        file.truncate(8 << 30)
    limit = 1 << 30
    with huge.open("rb") as stdin:
        done = subprocess.run(
            [bare_node.plugin],
            stdin=stdin,
            env=bare_node.variables("DEL"),
            capture_output=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )
    error = json.loads(done.stdout)
    assert (done.returncode, error["code"]) == (1, 999)
    assert "MemoryError" in error["msg"]
    assert len(error["details"]) < 400
    assert b"Traceback" not in done.stdout + done.stderr


class TestStdin:
    """Item 8: stdin is read to its end before anything is done."""

    def test_008_read_to_its_end_first(self, bare_node: Node) -> None:
        """While stdin is open nothing happens, although the input so far is complete."""
        reading, writing = os.pipe()
        with subprocess.Popen([bare_node.plugin], stdin=reading, stdout=-1, stderr=-1, env=bare_node.variables("DEL")) as process:
            os.close(reading)
            try:
                os.write(writing, json.dumps(bare_node.network()).encode())
                wait_until(lambda: _unread(writing) == 0, what="the plugin has read")
                assert process.poll() is None
                assert not bare_node.state.exists()
                os.write(writing, b" x")
            finally:
                os.close(writing)
            refused(finish(process, "DEL"), 6)

    def test_008_what_cannot_be_read(self, bare_node: Node) -> None:
        """A stdin that is closed or not open for reading is 5, an empty one 6; a file works like a pipe."""
        network = bare_node.directory / "network.json"
        network.write_text(json.dumps(bare_node.network()))
        for redirection, code in (("<&-", 5), (f"0>{network}.out", 5), ("</dev/null", 6), (f"<{network}", None)):
            command = ["/bin/sh", "-c", f'exec "{bare_node.plugin}" {redirection}']
            made = call(command, "DEL", bare_node.variables("DEL"))
            assert made.code == code, (redirection, made.stdout, made.stderr)


def _unread(fd: int) -> int:
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_009_children_keep_none_of_our_pipes(bare_node: Node) -> None:
    """The runtime does not have to wait for a child that a delegate leaves behind in a session of its own."""
    delegate = scripted(bare_node).tell("DEL", grandchild="session")
    made = bare_node.run("DEL", bare_node.network(ipam=ipam(delegate)))
    (called,) = delegate.calls()
    try:
        succeeded(made)
        assert Path(f"/proc/{called['grandchild']}").exists()
    finally:
        os.kill(called["grandchild"], signal.SIGKILL)


@pytest.mark.parametrize("stdout", [">/dev/full", ">&-", "| :"])
def test_010_a_result_that_cannot_be_written(node: Node, sandbox: str, stdout: str) -> None:
    """An ADD whose answer cannot be delivered undoes itself and ends with 1."""
    if stdout == "| :":
        command = 'mkfifo "$0.fifo"; true <"$0.fifo" & exec 3>"$0.fifo"; wait; exec "$0" >&3'
    else:
        command = f'exec "$0" {stdout}'
    network = json.dumps(node.network("1.0.0", ipam=node.host_local())).encode()
    made = call(["/bin/sh", "-c", command, node.plugin], "ADD", node.variables("ADD", sandbox), network)
    assert made.status == 1, made.stderr
    assert made.stdout == b""
    assert node.leftovers() == {}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_011_a_signal_undoes_add(node: Node, sandbox: str, name: str) -> None:
    """SIGTERM or SIGINT, while addresses are leased or while OVS works, make ADD undo itself and answer 11."""
    delegate = scripted(node).tell("ADD", signal_parent=name, answer={"ips": [{"address": "10.1.2.3/24"}]})
    refused(node.run("ADD", node.network(ipam=ipam(delegate)), sandbox), 11, name)
    assert delegate.commands() == ["ADD", "DEL"]
    switch = switch_of(node)
    stdin = json.dumps(node.network()).encode()
    with paused_vswitchd(switch), start(node, node.variables("ADD", sandbox), stdin) as process:
        wait_until(lambda: switch.port(PORT), what="the port is in OVSDB")
        process.send_signal(signal.Signals[name])
        refused(finish(process, "ADD"), 11, name)
    assert node.leftovers() == {}


class TestIsolation:
    """Item 12: variables, modules and directories of the runtime do not reach the interpreter."""

    def test_012_python_variables_and_modules(self, bare_node: Node, tmp_path: Path) -> None:
        """PYTHON* variables, a user site and modules in the working directory are ignored."""
        for name in ("json", "os", "sitecustomize", "usercustomize", "userspace_cni", "click"):
            (tmp_path / f"{name}.py").write_text("raise SystemExit(77)\n")
        poison = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere", "PYTHONSTARTUP": "/nowhere", "PYTHONINSPECT": "1"}
        environ = {**bare_node.variables("DEL"), **poison, "HOME": str(tmp_path)}
        command = ["/bin/sh", "-c", f'cd "{tmp_path}" && exec "{bare_node.plugin}"']
        succeeded(call(command, "DEL", environ, json.dumps(bare_node.network()).encode()))

    def test_012_almost_no_environment(self, bare_node: Node) -> None:
        """Without HOME, LANG or PATH a call is answered like any other."""
        for verb, code in (("VERSION", None), ("ADD", 4)):
            assert call(bare_node.plugin, verb, ANYWHERE, json.dumps(bare_node.network()).encode()).code == code

    @pytest.mark.parametrize("spoil", ['rmdir "$1"', 'chmod 0 "$1"'])
    def test_012_no_working_directory(self, bare_node: Node, tmp_path: Path, spoil: str) -> None:
        """A call works in a working directory that is deleted or unreadable."""
        cwd = tmp_path / "cwd"
        cwd.mkdir()
        command = ["/bin/sh", "-c", f'cd "$1" && {spoil} && exec "$0"', bare_node.plugin, str(cwd)]
        succeeded(call(command, "DEL", bare_node.variables("DEL"), json.dumps(bare_node.network()).encode()))


class TestJson:
    """Item 13: strict input, ASCII output."""

    def test_013_strict_input(self, bare_node: Node) -> None:
        """A byte order mark, trailing data, NaN, Infinity, broken UTF-8 and anything but an object are 6."""
        good = json.dumps(bare_node.network()).encode()
        bad = [
            b"\xef\xbb\xbf" + good,
            good + b"{}",
            good + b"\0",
            b"",
            b" ",
            b"{",
            b"[]",
            b'"x"',
            b"1",
            b"null",
            b'{"name": "\xff"}',
        ]
        bad += [good[:-1] + b', "x": ' + value + b"}" for value in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"'x'", b"01")]
        for stdin in bad:
            refused(bare_node.run("DEL", stdin), 6)
        refused(bare_node.run("ADD", bad[0], "/absent"), 6)
        assert not bare_node.state.exists()

    def test_013_ascii_output(self, bare_node: Node) -> None:
        """Undecodable bytes and other alphabets in variables are reported in ASCII that any JSON reader takes."""
        for value in (b"\xff\xfe", "naïve\u2028".encode(), b"\xed\xa0\x80"):
            made = bare_node.run("ADD", bare_node.network(), "/absent", CNI_ARGS=os.fsdecode(value))
            refused(made, 4, "CNI_ARGS")
            assert made.stdout.isascii()
            made.document["details"].encode("utf-8")


def test_014_no_command(bare_node: Node) -> None:
    """Without CNI_COMMAND the plugin writes to stderr what it is and which versions it supports, and ends with 0."""
    for environ in (without(bare_node.variables(""), "CNI_COMMAND"), bare_node.variables("")):
        made = call(bare_node.plugin, None, environ)
        assert (made.status, made.stdout) == (0, b"")
        text = made.stderr.decode()
        assert "CNI" in text
        assert all(version in text for version in SUPPORTED)


def test_015_what_a_verb_does_not_use_is_not_loaded(node: Node) -> None:
    """VERSION and refusals import no library of OVSDB, the API server or the command line; STATUS imports that of OVSDB alone."""
    ovsdb = {"ovs", "ovsdbapp"}
    others = {"kubernetes", "urllib3", "pyroute2", "click", "rich", "cffi", "asyncio", "prometheus_client"}
    assert not _imported(node, "VERSION") & (ovsdb | others | {"subprocess", "_cffi_backend"})
    assert not _imported(node, "CHECK") & (ovsdb | others | {"subprocess"})
    assert not _imported(node, "STATUS") & others


def _imported(node: Node, verb: str) -> set[str]:
    """The top-level modules that a call imports, as the interpreter reports them."""
    command = [sys.executable, "-I", "-X", "importtime", "-m", "userspace_cni"]
    made: Call = call(command, verb, node.variables(verb), json.dumps(node.network()).encode())
    lines = [line.rpartition("|")[2].strip() for line in made.stderr.decode().splitlines() if line.startswith("import time:")]
    return {line.partition(".")[0] for line in lines}

"""Calls that the shim answers without an agent: a bad environment, bad settings, VERSION, and no verb at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.node.agentless import RESULT, Agent, Caller, answers, refused
from tests.lab.node.calls import call_plugin
from userspace_cni import shim
from userspace_cni.cni import protocol
from userspace_cni.cni.result import version_answer

TRAVELLING = tuple(protocol.VARIABLES)


def python_answers(environ: dict[str, str]) -> bytes:
    """The output of the plugin in-process for a call that needs no node."""
    return call_plugin(environ, lambda: b"", lambda: pytest.fail("the node is asked")).output


@pytest.mark.parametrize("command", ["NOPE", "add", "ADD ", "DELETE", "VERSION2"])
def test_unknown_command(caller: Caller, command: str) -> None:
    """A command that is no verb is 4, in the words of the plugin in-process."""
    done = caller.run(command)
    refused(done, 4, "CNI_COMMAND", repr(command))
    assert done.stdout == python_answers({"CNI_COMMAND": command})


def test_unprintable_command(caller: Caller) -> None:
    """With any bytes in the value, the error is one JSON document in ASCII, of limited length."""
    refused(caller.run("ADD", CNI_COMMAND=b'a"\\\x01\xff\n' + b"z" * 10000), 4, 'a"\\\x01\\xff\nzzz')


def test_no_command(caller: Caller) -> None:
    """Without a verb it tells what it is on stderr, as the plugin in-process does, and where socket and spool are."""
    about = subprocess.run([sys.executable, "-m", "userspace_cni"], capture_output=True, text=True, check=True, env={}).stderr
    for none in (None, ""):
        done = caller.run("", CNI_COMMAND=none)
        assert (done.code, done.stdout) == (0, b"")
        assert done.stderr.startswith(about)
        assert str(caller.socket) in done.stderr
        assert f"{caller.spool} (at most 1024)" in done.stderr


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_named_as_its_own_delegate(caller: Caller, verb: str) -> None:
    """A network that names us as its IPAM plugin is refused with 7, in the words of the plugin in-process."""
    done = caller.run(verb, USERSPACE_CNI_DELEGATED="1")
    refused(done, 7, "ipam.type")
    assert done.stdout == python_answers({"CNI_COMMAND": verb, "USERSPACE_CNI_DELEGATED": "1"})
    assert caller.entries == []


@pytest.mark.parametrize("missing", [("CNI_CONTAINERID",), ("CNI_IFNAME",), ("CNI_CONTAINERID", "CNI_IFNAME")])
def test_missing_variables_of_del(caller: Caller, missing: tuple[str, ...]) -> None:
    """A DEL that could never be served is not spooled: 4 naming all that is missing, as in-process."""
    for value in (None, ""):
        done = caller.run("DEL", **dict.fromkeys(missing, value))
        refused(done, 4, f"[{','.join(missing)}]")
        present = {name: "x" for name in ("CNI_CONTAINERID", "CNI_IFNAME") if name not in missing}
        assert done.stdout == python_answers({"CNI_COMMAND": "DEL", **present})
    assert caller.entries == []


@pytest.mark.parametrize("name", TRAVELLING)
@pytest.mark.parametrize("byte", [b"\n", b"\r", b"\t", b"\x01", b"\x1f", b"\x7f"])
def test_control_character(caller: Caller, name: str, byte: bytes) -> None:
    """A control character is 4 naming the variable and the byte, and never sent or spooled."""
    with Agent(caller.socket, answers(200, RESULT)) as agent:
        for verb in ("ADD", "DEL"):
            refused(caller.run(verb, **{name: b"ab" + byte}), 4, name, f"0x{byte[0]:02x} at offset 2")
        assert agent.received == []
    assert caller.entries == []


def test_values_too_long(caller: Caller) -> None:
    """All values together may have 64 KiB, even when each byte is encoded; more is 4 naming the longest."""
    others = sum(len(value) for name, value in caller.environ("ADD").items() if name in TRAVELLING and name != "CNI_ARGS")
    with Agent(caller.socket, answers(200, RESULT)) as agent:
        assert caller.run("ADD", CNI_ARGS="é" * ((65536 - others) // 2) + "x" * (others % 2)).code == 0
        head, _ = protocol.read_request(agent.request)
        assert sum(len(os.fsencode(value)) for name, value in protocol.environment(head).items() if name in TRAVELLING) == 65536
        refused(caller.run("ADD", CNI_ARGS="x" * (65537 - others)), 4, "CNI_ARGS is too long", "65536")
        refused(caller.run("DEL", BAGGAGE="x" * 100_000, CNI_ARGS="x" * 10_000), 4, "BAGGAGE is too long", "100000")
        assert len(agent.received) == 1
    assert caller.entries == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("USERSPACE_CNI_SOCKET", "relative"),
        ("USERSPACE_CNI_SOCKET", "/a/../b"),
        ("USERSPACE_CNI_SOCKET", "/a/.."),
        ("USERSPACE_CNI_SOCKET", "/" + "x" * 107),
        ("USERSPACE_CNI_STATE_DIR", "relative"),
        ("USERSPACE_CNI_STATE_DIR", "/" + "x" * 249),
        ("USERSPACE_CNI_STATE_DIR", "/"),
        ("USERSPACE_CNI_RUN_DIR", "relative"),
        ("USERSPACE_CNI_RUN_DIR", "/a/.."),
        ("USERSPACE_CNI_RUN_DIR", "/" + "x" * 249),
        ("USERSPACE_CNI_SPOOL_MAX", "0"),
        ("USERSPACE_CNI_SPOOL_MAX", "-1"),
        ("USERSPACE_CNI_SPOOL_MAX", "1000000"),
        ("USERSPACE_CNI_SPOOL_MAX", "99999999999999999999999"),
        ("USERSPACE_CNI_SPOOL_MAX", "1.5"),
        ("USERSPACE_CNI_SPOOL_MAX", "many"),
    ],
)
def test_bad_setting(caller: Caller, name: str, value: str) -> None:
    """A setting that is not allowed is 7 naming variable and value; no default replaces it, and VERSION works."""
    for verb in ("ADD", "DEL"):
        refused(caller.run(verb, **{name: value}), 7, f"{name} is '{value[:128]}'")
    assert caller.run("VERSION", **{name: value}).code == 0
    about = caller.run("", **{name: value})
    assert (about.code, about.stdout) == (0, b"")
    assert name in about.stderr


def test_empty_settings_are_unset(caller: Caller) -> None:
    """Our variables count as unset when they are empty, as in-process: the installed settings hold."""
    names = ("SOCKET", "RUN_DIR", "STATE_DIR", "SPOOL_MAX")
    done = caller.run("", **{f"USERSPACE_CNI_{name}": "" for name in names})
    assert f"{caller.socket}\n" in done.stderr
    assert f"{caller.spool} (at most 1024)" in done.stderr


def test_a_run_dir_too_long_for_a_socket(caller: Caller) -> None:
    """A run directory in which no socket can be is 7 when the socket would be in it, else no error."""
    long = "/" + "x" * 97
    installed_in_run_dir(caller)
    refused(caller.run("ADD", USERSPACE_CNI_SOCKET="", USERSPACE_CNI_RUN_DIR=long), 7, "USERSPACE_CNI_RUN_DIR", "107 bytes")
    refused(caller.run("ADD", USERSPACE_CNI_RUN_DIR=long), 11, str(caller.socket))


def installed_in_run_dir(caller: Caller) -> None:
    """The binary as it is installed when no `socket` is set."""
    path = Path(caller.program)
    path.write_bytes(shim.fill(path.read_bytes(), socket="", run_dir="/run/x", state_dir="/state", spool_max=1))


def test_dots_within_a_name(caller: Caller) -> None:
    """Two dots that are not a whole component are a name like others."""
    away = caller.directory / "a..b" / "..c"
    refused(caller.run("ADD", USERSPACE_CNI_SOCKET=str(away)), 11, str(away), "path is absent")


# -- VERSION ------------------------------------------------------------------------------------------------------------------


def test_version(caller: Caller) -> None:
    """VERSION is Python's answer to an input that names none, and needs neither stdin, agent nor a valid environment."""
    expected = version_answer(None)
    assert caller.run("VERSION").stdout == expected
    assert caller.run("VERSION", b'{"cniVersion":"0.3.0"}').stdout == expected
    junk: dict[str, str | bytes] = {
        "CNI_NETNS": "dummy",
        "CNI_ARGS": b"\x01",
        "USERSPACE_CNI_DELEGATED": "1",
        "CNI_CONTAINERID": "",
    }
    assert caller.run("VERSION", b"", **junk).stdout == expected
    assert not (caller.directory / "state").exists()


def test_version_reads_no_stdin(caller: Caller) -> None:
    """VERSION answers while stdin is still open."""
    with caller.start("VERSION") as process:
        assert process.stdout
        assert process.stdout.read() == version_answer(None)
        assert process.wait(60) == 0

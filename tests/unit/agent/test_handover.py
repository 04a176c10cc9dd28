"""The plugin as a process beside an agent: what it hands over, what it serves itself, and that no call is served twice."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.node.agentless import (
    BODY_MAX,
    NETWORK,
    NO_ANSWERS,
    RESULT,
    TROUBLE,
    Agent,
    Caller,
    answers,
    dribbles,
    finish,
    full_pipe,
    give_stdin,
    holds,
    refused,
    reply,
    says,
    vanishes,
)
from tests.lab.switch.switch import wait_until
from userspace_cni.base import settings as of_all
from userspace_cni.base import whereabouts as of_the_agent
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.settings import load
from userspace_cni.base.whereabouts import whereabouts
from userspace_cni.cli.node.install import install_launcher
from userspace_cni.cni import protocol

ITSELF = "this process serves the call itself"
"""The plugin's message when an agent exists but does not serve."""
IMPATIENT = f"""#!{sys.executable}
import sys
from userspace_cni import __main__
from userspace_cni.agent import handover
handover.TAKEN_S, handover.PATIENCE_S, handover.STATUS_S = 0.3, 1.0, 0.5
sys.exit(__main__.main())
"""
WHAT_SENDS = ("agent", "agent.handover", "base", "base.signals", "base.whereabouts", "cni", "cni.wire")
HEAVY = {
    "typing",
    "re",
    "enum",
    "socket",
    "signal",
    "json",
    "dataclasses",
    "collections",
    "contextlib",
    "pathlib",
    "tomllib",
    "site",
}


@dataclass
class Standalone(Caller):
    """A runtime that executes the launcher; there is no switch, and no namespace."""

    def __post_init__(self) -> None:
        (self.directory / "config.toml").touch()
        self.variables = {
            "PATH": os.defpath,
            "CNI_NETNS": str(self.directory / "config.toml"),
            "USERSPACE_CNI_CONFIG": str(self.directory / "config.toml"),
            "USERSPACE_CNI_RUN_DIR": str(self.directory / "run"),
            "USERSPACE_CNI_OVSDB": f"unix:{self.directory}/absent",
            **self.variables,
        }


@pytest.fixture(scope="module")
def launcher() -> Iterator[str]:
    """What `install --standalone` installs."""
    with TemporaryDirectory(prefix="uc-") as directory:
        yield str(install_launcher(directory))


@pytest.fixture
def caller(launcher: str, place: Path) -> Standalone:
    """A runtime with the launcher as it is installed."""
    return Standalone(launcher, place)


@pytest.fixture
def impatient(place: Path) -> Standalone:
    """A runtime whose plugin gives up within a second."""
    program = place / "impatient"
    program.write_text(IMPATIENT)
    program.chmod(0o755)
    return Standalone(str(program), place)


# -- what is handed over ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_the_agent_reads_what_the_runtime_gave(caller: Standalone, verb: str) -> None:
    """Every byte that a variable and stdin can have arrives, with the verb, the time of the call and the directories meant."""
    value = bytes(byte for byte in range(1, 0x100))
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with Agent(caller.socket, answers(200, b"{}")) as agent:
        caller.run(verb, value * 2, **dict.fromkeys(protocol.VARIABLES, value))
        head, body = protocol.read_request(agent.request)
    assert body == value * 2
    assert protocol.environment(head) == {"CNI_COMMAND": verb} | dict.fromkeys(protocol.VARIABLES, os.fsdecode(value))
    assert protocol.addressee(head) == {"state_dir": f"{caller.directory}/state", "run_dir": f"{caller.directory}/run"}
    called = protocol.read_call_time(head)
    assert called
    assert called.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert before < called.boottime_ns < time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize(
    ("verb", "status", "body", "code"),
    [("ADD", 200, RESULT, 0), ("DEL", 200, b"", 0), ("ADD", 500, TROUBLE, 1), ("STATUS", 500, b'{"cniVersion":"1.1.0"}', 1)],
)
def test_the_answer_is_the_agents(caller: Standalone, verb: str, status: int, body: bytes, code: int) -> None:
    """Stdout is the answer's body, byte by byte; the exit code follows its status; nothing else is printed."""
    with Agent(caller.socket, answers(status, body)) as agent:
        done = caller.run(verb)
        assert (done.code, done.stdout, done.stderr) == (code, body, "")
        assert len(agent.received) == 1


def test_a_large_answer_in_pieces(caller: Standalone) -> None:
    """An answer that comes byte by byte at first, and is larger than any buffer, is complete on stdout."""
    body = b'"' + b"x" * 3_000_000 + b'"'
    with Agent(caller.socket, dribbles(reply(200, body), 80)):
        assert caller.run("ADD").stdout == body


def test_what_it_imports(place: Path) -> None:
    """A call that is handed over imports only what sends it, and little of the standard library."""
    caller = Standalone(str(install_launcher(str(place / "bin"))), place)
    installed = Path(caller.program)
    installed.write_text(installed.read_text().replace(" -I -S ", " -I -S -X importtime ", 1))
    with Agent(caller.socket, answers(200, RESULT)):
        said = caller.run("ADD").stderr
    imported = {line.rpartition("|")[2].strip() for line in said.splitlines()}
    ours = {name for name in imported if name.startswith("userspace_cni.")}
    assert ours == {f"userspace_cni.{name}" for name in ("__main__", *WHAT_SENDS)}
    assert imported & HEAVY == set()


def test_version_and_a_delegate_ask_no_agent(caller: Standalone) -> None:
    """The process answers VERSION itself; called as its own IPAM plugin it refuses, because the agent would wait for itself."""
    with Agent(caller.socket, answers(200, RESULT)) as agent:
        assert b"supportedVersions" in caller.run("VERSION").stdout
        refused(caller.run("ADD", USERSPACE_CNI_DELEGATED="1"), 7, "ipam.type")
        assert agent.received == []


# -- what it serves itself ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["absent", "dead", "no socket", "full"])
def test_no_agent(caller: Standalone, kind: str) -> None:
    """When no agent listens, or its queue is full, the process serves the call and prints nothing about an agent."""
    with ExitStack() as stack:
        if kind == "no socket":
            caller.socket.touch()
        elif kind != "absent":
            listener = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
            listener.bind(str(caller.socket))
            if kind == "full":
                listener.listen(0)
                stack.enter_context(closing(socket.socket(socket.AF_UNIX))).connect(str(caller.socket))
        done = caller.run("STATUS")
    refused(done, 50, "OVSDB")
    assert "agent" not in done.stderr


@pytest.mark.parametrize(
    ("verb", "status", "code", "said"),
    [
        *(("STATUS", status, 50, "OVSDB") for status in (400, 403, 404, 408, 413, 421, 431, 503)),
        ("ADD", 503, 4, "it is not a namespace"),
    ],
)
def test_refused_before_any_verb_has_run(caller: Standalone, verb: str, status: int, code: int, said: str) -> None:
    """When an agent has another protocol or directories, or is full or stopping, the process serves the call and says so."""
    with Agent(caller.socket, answers(status, TROUBLE)):
        done = caller.run(verb)
    assert TROUBLE not in done.stdout
    assert ITSELF in done.stderr
    assert f"HTTP status {status}" in done.stderr
    assert str(caller.socket) in done.stderr
    refused(done, code, said)


def test_told_to_serve_itself(caller: Standalone) -> None:
    """With hand_over = false, in the file or the environment, no agent is asked."""
    with Agent(caller.socket, answers(200, RESULT)) as agent:
        refused(caller.run("STATUS", USERSPACE_CNI_HAND_OVER="no"), 50)
        (caller.directory / "config.toml").write_text("hand_over = false\n")
        refused(caller.run("STATUS"), 50)
        assert agent.received == []
        assert caller.run("STATUS", USERSPACE_CNI_HAND_OVER="yes").code == 0


def test_input_that_the_protocol_does_not_take(caller: Standalone) -> None:
    """The process itself judges input larger than an agent reads, and a closed stdin."""
    with Agent(caller.socket, vanishes) as agent:
        refused(caller.run("STATUS", b'{"name": "' + b"x" * BODY_MAX + b'"}'), 7)
        refused(caller.run("STATUS", CNI_ARGS=" " * 100_000, CNI_PATH=" " * 100_000), 50)
        with (caller.directory / "w").open("wb") as unreadable, caller.start("STATUS", stdin=unreadable) as process:
            refused(finish(process, None), 5)
        assert set(map(bytes, agent.received)) == {b""}


def test_a_request_that_is_not_read_is_withdrawn(impatient: Standalone) -> None:
    """A stopped agent never gets the whole of a call that the process then serves."""
    seen = []

    def looks_late(client: socket.socket) -> None:
        wait_until(lambda: process.poll() is not None, what="the plugin to end")
        client.settimeout(60)
        while chunk := client.recv(65536):
            seen.append(chunk)

    with Agent(impatient.socket, looks_late) as agent, impatient.start("ADD") as process:
        done = finish(process)
        wait_until(lambda: agent.request.endswith(NETWORK[-9:-1]), what="what was sent to be read")
    assert ITSELF in done.stderr
    assert "does not read" in done.stderr
    refused(done, 4, "CNI_NETNS")
    assert not b"".join(seen).endswith(NETWORK)


@pytest.mark.parametrize("kind", ["reset", "closed unread", "last byte unread"])
def test_an_agent_that_ends_before_it_has_the_call(caller: Standalone, kind: str) -> None:
    """When the connection closes before the whole request was read, the process serves even an ADD."""

    def script(client: socket.socket) -> None:
        if kind == "reset":
            client.recv(1)
        elif kind == "last byte unread":
            data = b""
            while not data.endswith(NETWORK[:-1]):
                data += client.recv(65536)
            client.settimeout(60)
            client.recv(1, socket.MSG_PEEK)

    with Agent(caller.socket, script) as agent:
        done = caller.run("ADD")
        assert len(agent.received) == 1
    assert ITSELF in done.stderr
    refused(done, 4, "CNI_NETNS")


# -- what is not known --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(NO_ANSWERS.keys() - {"resets"}))
def test_an_add_of_unknown_outcome(caller: Standalone, kind: str) -> None:
    """An agent that got the whole ADD and answers nothing complete may have served it: 11, and it is not served again."""
    with Agent(caller.socket, NO_ANSWERS[kind]) as agent:
        done = caller.run("ADD")
        assert len(agent.received) == 1
    refused(done, 11, str(caller.socket), "undone")
    assert not (caller.directory / "state").exists()


@pytest.mark.parametrize("verb", ["DEL", "CHECK", "GC", "STATUS"])
def test_what_can_be_served_twice_is(caller: Standalone, verb: str) -> None:
    """The process serves every other verb again when its answer is lost."""
    with Agent(caller.socket, vanishes) as agent:
        done = caller.run(verb)
        assert len(agent.received) == 1
    assert ITSELF in done.stderr
    if done.code:
        assert json.loads(done.stdout)["code"] != 11


def test_silence(impatient: Standalone) -> None:
    """When an agent is silent until the deadline, ADD is 11 and its connection ends; STATUS is answered by this process."""
    with Agent(impatient.socket, holds()) as agent:
        refused(impatient.run("ADD"), 11, "silent")
        assert agent.ended.wait(60)
        refused(impatient.run("STATUS"), 50, "OVSDB")


# -- how it ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_the_agent_works(caller: Standalone, number: signal.Signals) -> None:
    """The connection ends, which tells the agent, and the runtime gets the answer."""
    with Agent(caller.socket, holds()) as agent, caller.start("ADD") as process:
        give_stdin(process)
        wait_until(lambda: agent.received and agent.request.endswith(NETWORK), what="the agent to have the call")
        process.send_signal(number)
        done = finish(process, None)
        assert agent.ended.wait(60)
    refused(done, 11, number.name)


def test_an_answer_that_cannot_be_written(caller: Standalone) -> None:
    """An ADD whose answer cannot be written is undone, by the agent if it serves: with a DEL that is later than the ADD."""
    reader, writer = os.pipe()
    os.close(reader)
    with Agent(caller.socket, answers(200, RESULT), answers(200)) as agent:
        with caller.start("ADD", stdout=writer) as process:
            os.close(writer)
            assert finish(process).code == 1
        heads = [protocol.read_request(bytes(request))[0] for request in agent.received]
    assert [head.verb for head in heads] == ["ADD", "DEL"]
    times = [protocol.read_call_time(head) for head in heads]
    assert times[0]
    assert times[1]
    assert times[0].boottime_ns < times[1].boottime_ns


def test_a_signal_while_stdout_is_full(caller: Standalone) -> None:
    """A runtime that does not read and stops the plugin: the ADD is undone."""
    reader, writer = full_pipe()
    with reader, Agent(caller.socket, says(reply(200, RESULT)), answers(200)) as agent:
        with writer, caller.start("ADD", stdout=writer) as process:
            give_stdin(process)
            wait_until(lambda: "pipe" in Path(f"/proc/{process.pid}/wchan").read_text(), what="the plugin to write")
            process.send_signal(signal.SIGTERM)
            assert finish(process, None).code == 1
        assert [protocol.read_request(bytes(request))[0].verb for request in agent.received] == ["ADD", "DEL"]


# -- whom it means ------------------------------------------------------------------------------------------------------------

FILES = {
    "empty": b"",
    "others": b'log_level = "debug"\nlegacy_state_dir = "/x"\n',
    "all": b'state_dir = "/srv//s/"\nrun_dir = "//run/r"\nsocket = "/run/q.sock"\n',
    "escaped": b'"st\\u0061te_dir" = "/escaped"\n',
    "literal": b"'run_dir' = '/quoted'\n",
    "in a table": b'[x]\nstate_dir = "/x"\n',
    "in a text": b"node_name = '''\nstate_dir = \"/x\"\n'''\n",
    "relative": b'state_dir = "x"\n',
    "no directory": b'run_dir = "/."\n',
    "with dots": b'socket = "/a/../b"\n',
    "another type": b"state_dir = 1\n",
    "NUL": b'socket = "/a\\u0000"\n',
    "broken": b'state_dir = "/x\n',
    "no UTF-8": b'state_dir = "/\xff"\n',
    "too long": b"#" * (1 << 20) + b"\n",
}
ENVIRONMENTS = [
    {},
    {"STATE_DIR": "/e/s/", "RUN_DIR": "/e//r"},
    {"SOCKET": "/e.sock"},
    {"RUN_DIR": "e"},
    {"STATE_DIR": "/e/../f"},
    {"SOCKET": "e"},
    {"RUN_DIR": "/", "STATE_DIR": ""},
    {"HAND_OVER": "maybe"},
]


@pytest.mark.parametrize("kind", FILES)
def test_the_same_agent_as_by_all_settings(tmp_path: Path, kind: str) -> None:
    """The quick look at the settings finds the same agent as reading them all; if they are invalid, the process reports it."""
    path = tmp_path / "config.toml"
    path.write_bytes(FILES[kind])
    for environment in ENVIRONMENTS:
        environ = {"USERSPACE_CNI_CONFIG": str(path), **{f"USERSPACE_CNI_{key}": value for key, value in environment.items()}}
        meant = whereabouts(environ)
        try:
            settings = load(environ)
        except UserspaceError:
            assert meant is None or kind == "in a table", environment  # what does not matter here is the agent's to judge
            continue
        assert meant, environment
        asked = (settings.agent_socket, settings.state_dir, settings.run_dir)
        assert (meant.socket, meant.state_dir, meant.run_dir) == asked, environment


def test_a_file_that_only_comments_on_these_keys_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Debian package's file names every key in a comment: a call does not pay for the parser because of that."""
    path = tmp_path / "config.toml"
    path.write_text('#state_dir = "/c"  # a\\b\n  # socket\nlog_level = "debug"\n')
    monkeypatch.setitem(sys.modules, "tomllib", None)  # importing it would fail
    meant = whereabouts({"USERSPACE_CNI_CONFIG": str(path)})
    assert meant is not None
    assert meant.state_dir == of_the_agent.STATE_DIR


def test_the_cluster_s_file_and_the_node_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds with two files: the node's takes precedence key by key."""
    for module in (of_the_agent, of_all):
        monkeypatch.setattr(module, "CLUSTER_FILE", str(tmp_path / "cluster.toml"))
        monkeypatch.setattr(module, "CONFIG_FILE", str(tmp_path / "node.toml"))
    (tmp_path / "cluster.toml").write_text('state_dir = "/cluster/s"\nrun_dir = "/cluster/r"\n')
    for text in (None, "", 'run_dir = "/node/r"\n'):
        if text is not None:
            (tmp_path / "node.toml").write_text(text)
        meant, settings = whereabouts({}), load({})
        assert meant
        assert (meant.socket, meant.state_dir, meant.run_dir) == (settings.agent_socket, settings.state_dir, settings.run_dir)
    (tmp_path / "cluster.toml").write_text("state_dir = 1\n")
    assert whereabouts({}) is None


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A file that is named and absent, or cannot be read, leads to no agent."""
    assert whereabouts({"USERSPACE_CNI_CONFIG": str(tmp_path / "absent")}) is None
    assert whereabouts({"USERSPACE_CNI_CONFIG": str(tmp_path)}) is None


def test_a_process_reports_it(caller: Standalone) -> None:
    """`python -m userspace_cni` hands a call over, too."""
    argv = [sys.executable, "-I", "-m", "userspace_cni"]
    with Agent(caller.socket, answers(200, RESULT)):
        done = subprocess.run(argv, env=caller.environ("ADD"), input=NETWORK, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, RESULT)

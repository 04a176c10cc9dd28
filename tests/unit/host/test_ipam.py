"""The IPAM plugin is run as the specification says; whatever it does, the verb ends in time with an error of ours."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.lab.runtimes.delegates.scripting import Scripted
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import (
    BadEnvironment,
    DelegateBroken,
    DelegateFailed,
    Interrupted,
    InvalidConfig,
    Unavailable,
    UserspaceError,
)
from userspace_cni.host.runtimes.ipam import STDOUT_MAX, Delegate, find

DEBIAN = Path("/usr/lib/cni")
ANSWER = {"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}


def soon() -> Deadline:
    """A deadline that leaves enough time for a plugin that ends."""
    return Deadline.after(60)


def variables(**extra: str) -> dict[str, str]:
    """A runtime's environment for one attachment."""
    return {
        "PATH": os.environ["PATH"],
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c0ffee",
        "CNI_NETNS": "/var/run/netns/none",
        "CNI_IFNAME": "net1",
        "CNI_ARGS": "",
        "CNI_PATH": str(DEBIAN),
    } | extra


def config(**ipam: Any) -> bytes:
    """A network's configuration with this `ipam` block."""
    return json.dumps({"cniVersion": "1.0.0", "name": "net", "type": "userspace", "ipam": ipam}).encode()


def gone(pid: int) -> bool:
    """Whether the process is dead; a zombie of another parent counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether `condition` became true in time."""
    deadline = Deadline.after(seconds)
    while not condition():
        if not deadline.remaining():
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    """A scripted delegate that answers ADD."""
    return Scripted(tmp_path / "bin").tell("ADD", answer=ANSWER)


@pytest.fixture
def delegate(scripted: Scripted) -> Delegate:
    """The scripted delegate as the plugin runs it."""
    return Delegate("scripted", [str(scripted.directory)], variables())


@contextmanager
def raising_on(signum: signal.Signals) -> Iterator[None]:
    """As the plugin does for SIGTERM: the signal becomes an exception wherever the main thread is."""

    def stop(_signum: int, _frame: FrameType | None) -> None:
        raise Interrupted("asked to stop")

    before = signal.signal(signum, stop)
    try:
        yield
    finally:
        signal.signal(signum, before)


class TestWhatItIsGiven:
    """Stdin, environment and descriptors of the delegate."""

    def test_only_the_command_is_replaced(self, scripted: Scripted) -> None:
        """The delegate gets the same bytes of stdin and the whole environment with another CNI_COMMAND."""
        given = variables(TRACEPARENT="00-1-2-01", SOME_PROXY="x")
        delegate = Delegate("scripted", [str(scripted.directory)], given)
        stdin = config(type="scripted") + b" \n" * 100_000
        delegate.add(stdin, soon())
        delegate.delete(stdin, soon())
        add, delete = scripted.calls()
        added = {key: value for key, value in add["env"].items() if key != "LC_CTYPE"}
        assert added == given
        assert delete["env"]["CNI_COMMAND"] == "DEL"
        assert add["stdin"].encode() == stdin

    @pytest.mark.parametrize(("method", "verb"), [("delete", "DEL"), ("check", "CHECK"), ("status", "STATUS"), ("gc", "GC")])
    def test_each_verb_reaches_it(self, scripted: Scripted, delegate: Delegate, method: str, verb: str) -> None:
        """Every method is one call with its verb, silent on success."""
        assert getattr(delegate, method)(config(type="scripted"), soon()) is None
        assert scripted.commands() == [verb]

    def test_no_descriptor_of_ours_but_those_given(self, scripted: Scripted, delegate: Delegate, tmp_path: Path) -> None:
        """Only the three pipes and `keep_open` are inherited, in a session of the delegate's own."""
        with (tmp_path / "lock").open("w") as lock, (tmp_path / "other").open("w") as other:
            os.set_inheritable(other.fileno(), True)
            delegate.add(config(type="scripted"), soon(), (lock.fileno(),))
            (call,) = scripted.calls()
            assert call["fds"] == [0, 1, 2, lock.fileno()]
        assert call["sid"] == call["pid"]

    def test_a_huge_config_that_is_not_read(self, tmp_path: Path) -> None:
        """A delegate that closes its stdin unread is no error."""
        plugin = tmp_path / "deaf"
        plugin.write_text("#!/bin/sh\nexec <&-\necho '{}'\n")
        plugin.chmod(0o755)
        assert Delegate("deaf", [str(tmp_path)], variables()).add(b"x" * 1_000_000, soon()) == {}

    def test_stderr_is_passed_on(self, scripted: Scripted, delegate: Delegate, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        """The delegate's stderr appears on our stderr, and nothing of it on our stdout."""
        scripted.tell("DEL", stderr="warning: so-so\n", stdout="noise")
        delegate.delete(config(type="scripted"), soon())
        captured = capfdbinary.readouterr()
        assert captured.err == b"warning: so-so\n"
        assert captured.out == b""


class TestItsErrors:
    """The different failures of the delegate."""

    def failure(self, delegate: Delegate) -> UserspaceError:
        with pytest.raises(UserspaceError) as caught:
            delegate.add(config(type="scripted"), soon())
        return caught.value

    def test_its_own_error_is_passed_on(self, scripted: Scripted, delegate: Delegate) -> None:
        """Code, msg and details of a CNI error object come through unchanged, surplus keys do not matter."""
        scripted.tell("ADD", exit=1, answer={"cniVersion": "1.0.0", "code": 11, "msg": "busy", "details": "later", "x": 1})
        error = self.failure(delegate)
        assert isinstance(error, DelegateFailed)
        assert (error.code, error.message, error.details) == (11, "busy", "later")

    @pytest.mark.parametrize("code", ["7", -1, 1.5, None, True, 2**32])
    def test_an_impossible_code_is_no_cni_error(self, scripted: Scripted, delegate: Delegate, code: object) -> None:
        """A code that libcni could not decode is not passed on, but named."""
        scripted.tell("ADD", exit=1, answer={"code": code, "msg": "x"})
        error = self.failure(delegate)
        assert isinstance(error, DelegateBroken)
        assert repr(code) in error.message

    def test_a_failure_without_json_has_stderr_in_its_details(self, scripted: Scripted, delegate: Delegate) -> None:
        """A crash is reported with its exit status and the end of its stderr."""
        scripted.tell("ADD", exit=3, stdout="Oops", stderr="y" * 100_000 + " panic: the end")
        error = self.failure(delegate)
        assert isinstance(error, DelegateBroken)
        assert "exit status 3" in error.message
        assert "Oops" in error.details
        assert error.details.endswith("panic: the end")
        assert len(error.details) < 3000

    def test_killed_by_a_signal(self, scripted: Scripted, delegate: Delegate) -> None:
        """A delegate that dies of a signal is reported with its number, whatever it had printed."""
        scripted.tell("ADD", kill="SIGSEGV", answer=ANSWER)
        error = self.failure(delegate)
        assert isinstance(error, DelegateBroken)
        assert "killed by signal 11" in error.message

    @pytest.mark.parametrize("text", ["", "garbage", "[]", "null", "{} {}", '{"a": NaN}', "\ufeff{}", "[" * 200_000])
    def test_an_answer_that_is_no_json_object(self, scripted: Scripted, delegate: Delegate, text: str) -> None:
        """Exit status 0 with anything but one JSON object is a broken delegate, not an empty result."""
        scripted.tell("ADD", stdout=text)
        assert isinstance(self.failure(delegate), DelegateBroken)

    def test_an_endless_answer(self, scripted: Scripted, delegate: Delegate) -> None:
        """Reading stops at the limit and the delegate is killed."""
        scripted.tell("ADD", stdout_bytes=STDOUT_MAX * 3, hang=True)
        error = self.failure(delegate)
        assert isinstance(error, DelegateBroken)
        assert str(STDOUT_MAX) in error.message
        assert gone(scripted.calls()[0]["pid"])

    def test_a_file_that_is_no_program(self, tmp_path: Path) -> None:
        """What the kernel will not execute is a broken delegate, with the path in the message."""
        (tmp_path / "text").write_text("hello")
        (tmp_path / "text").chmod(0o755)
        with pytest.raises(DelegateBroken, match=str(tmp_path / "text")):
            Delegate("text", [str(tmp_path)], variables()).delete(b"{}", soon())

    def test_an_environment_that_cannot_be_passed(self, scripted: Scripted) -> None:
        """A NUL in a variable is the caller's error, not a crash."""
        with pytest.raises(BadEnvironment):
            Delegate("scripted", [str(scripted.directory)], variables(CNI_ARGS="a\0b")).delete(b"{}", soon())


class TestTimeAndChildren:
    """The delegate never outlives what it was run for."""

    def test_killed_at_the_deadline_with_its_children(self, scripted: Scripted, delegate: Delegate) -> None:
        """At the deadline the whole group is killed, and the error says so and shows its stderr."""
        scripted.tell("ADD", grandchild=True, stderr="waiting for the moon", hang=True)
        for seconds in (2, 8, 32):  # on a busy machine it may need longer to say its words
            with pytest.raises(Unavailable, match=r"killed after \d+\.\d s") as caught:
                delegate.add(config(type="scripted"), Deadline.after(seconds))
            assert caught.value.code == 11
            if "waiting for the moon" in caught.value.details:
                break
        assert "waiting for the moon" in caught.value.details
        call = scripted.calls()[-1]
        assert gone(call["pid"])
        assert wait_until(lambda: gone(call["grandchild"]))

    def test_not_started_after_the_deadline(self, scripted: Scripted, delegate: Delegate) -> None:
        """Without time left nothing is run."""
        with pytest.raises(Unavailable):
            delegate.add(config(type="scripted"), Deadline.after(0))
        assert scripted.calls() == []

    def test_a_child_that_keeps_the_pipes_open(self, scripted: Scripted, delegate: Delegate) -> None:
        """The answer counts when the delegate has ended; processes left in its group are killed, so that they hold no lock."""
        scripted.tell("ADD", grandchild=True, answer=ANSWER)
        assert delegate.add(config(type="scripted"), soon()) == ANSWER
        assert wait_until(lambda: gone(scripted.calls()[0]["grandchild"]))

    def test_a_daemon_in_its_own_session_does_not_delay_us(self, scripted: Scripted, delegate: Delegate) -> None:
        """A child that left the group lives on; the verb does not wait for the pipes that it keeps open."""
        scripted.tell("ADD", grandchild="session", answer=ANSWER)
        assert delegate.add(config(type="scripted"), soon()) == ANSWER
        daemon = scripted.calls()[0]["grandchild"]
        assert not gone(daemon)
        os.kill(daemon, signal.SIGKILL)

    def test_killed_when_we_are_interrupted(self, scripted: Scripted, delegate: Delegate) -> None:
        """An exception out of a signal handler kills and reaps the delegate before it goes on."""
        scripted.tell("ADD", signal_parent="SIGUSR1", hang=True)
        with raising_on(signal.SIGUSR1), pytest.raises(Interrupted):
            delegate.add(config(type="scripted"), soon())
        assert not Path(f"/proc/{scripted.calls()[0]['pid']}").exists()

    def test_a_lock_survives_us_with_the_delegate(self, scripted: Scripted, tmp_path: Path) -> None:
        """When we are killed amid ADD, the lock in `keep_open` is held until the delegate has ended too."""
        scripted.tell("ADD", signal_parent="SIGKILL", hang=True)
        path = tmp_path / "lock"
        delegate = Delegate("scripted", [str(scripted.directory)], variables())
        pid = os.fork()
        if pid == 0:
            try:
                with path.open("w") as mine:
                    fcntl.flock(mine, fcntl.LOCK_EX)
                    delegate.add(config(type="scripted"), soon(), (mine.fileno(),))
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status)
        with path.open() as theirs:
            with pytest.raises(BlockingIOError):
                fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.kill(scripted.calls()[0]["pid"], signal.SIGKILL)

            def free() -> bool:
                try:
                    fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                return True

            assert wait_until(free)


class TestVersions:
    """What decides whether STATUS and GC are forwarded."""

    def test_asked_once(self, scripted: Scripted, delegate: Delegate) -> None:
        """The answer to VERSION is kept, and 1.1.0 in it opens STATUS and GC."""
        scripted.tell("VERSION", answer={"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]})
        assert delegate.knows("STATUS", soon())
        assert delegate.knows("GC", soon())
        assert scripted.commands() == ["VERSION"]

    def test_other_verbs_need_no_question(self, scripted: Scripted, delegate: Delegate) -> None:
        """ADD, DEL and CHECK go to every delegate."""
        assert all(delegate.knows(verb, soon()) for verb in ("ADD", "DEL", "CHECK"))
        assert scripted.commands() == []

    def test_a_plugin_that_refuses_version(self, scripted: Scripted, delegate: Delegate) -> None:
        """A plugin older than VERSION supports neither STATUS nor GC."""
        scripted.tell("VERSION", exit=1, answer={"code": 4, "msg": "unknown CNI_COMMAND: VERSION"})
        assert delegate.versions(soon()) == ()
        assert not delegate.knows("GC", soon())

    def test_a_list_that_is_none(self, scripted: Scripted, delegate: Delegate) -> None:
        """supportedVersions of another shape is a broken delegate."""
        scripted.tell("VERSION", answer={"supportedVersions": "1.1.0"})
        with pytest.raises(DelegateBroken, match="supportedVersions"):
            delegate.versions(soon())


class TestFind:
    """Where the program comes from."""

    def test_the_first_executable_of_that_name(self, tmp_path: Path) -> None:
        """Directories are searched in order; files without the executable bit and directories do not count, links do."""
        for name in ("a", "b", "c", "d"):
            (tmp_path / name).mkdir()
        (tmp_path / "a" / "plugin").mkdir()
        (tmp_path / "b" / "plugin").write_text("")
        (tmp_path / "d" / "real").write_text("")
        (tmp_path / "d" / "real").chmod(0o755)
        (tmp_path / "c" / "plugin").symlink_to(tmp_path / "d" / "real")
        searched = ["", str(tmp_path / "none"), *(str(tmp_path / name) for name in "abc")]
        assert find("plugin", searched) == str(tmp_path / "c" / "plugin")

    def test_a_relative_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A relative directory, as cnitool's users write it, is below the working directory."""
        (tmp_path / "plugin").write_text("")
        (tmp_path / "plugin").chmod(0o755)
        monkeypatch.chdir(tmp_path)
        assert find("plugin", ["."]) == str(tmp_path / "plugin")

    @pytest.mark.parametrize("name", ["", ".", "..", "../sh", "a/b", "a\0b", "absent"])
    def test_no_such_plugin(self, name: str) -> None:
        """A missing plugin and a name that is no file name are errors of the config, naming both sides."""
        with pytest.raises(InvalidConfig) as caught:
            find(name, ["/bin", "/usr/bin"])
        assert repr(name) in caught.value.message

    def test_an_empty_path(self) -> None:
        """The error says that CNI_PATH is empty."""
        with pytest.raises(InvalidConfig, match=r"CNI_PATH is \(empty\)"):
            find("host-local", [])

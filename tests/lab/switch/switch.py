"""A private OVS-DPDK for tests: an object that runs `deploy/private-switch`.

Its answers come from ovs-vsctl and ovs-appctl, never from the code under test.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lab.processes import is_stopped, runs

SCRIPT = Path(__file__).resolve().parents[3] / "deploy" / "private-switch"
START_SECONDS = 60
CTL_SECONDS = 60
STATISTICS_MS = 5000
"""ovs-vswitchd's default interval of statistics, and its shortest, in milliseconds."""
_ACCEPTS = "00010000"
"""A socket's flag in /proc/net/unix, __SO_ACCEPTCON: listen(2) was called, not only bind(2)."""
_REST_S = 0.5
"""The longest pause between two tries of a slow condition."""
FOR_EVER_S = 600.0
"""Longer than a test may take: for what must end without it, and for what hangs."""


def wait_until(condition: Callable[[], Any], seconds: float = 60.0, what: str = "", pause: float = 0.01) -> Any:
    """The first true value of `condition`, tried every `pause` seconds; AssertionError when there is none within `seconds`.

    A slow condition runs half of the time: most are programs, which take the processors from what is awaited.
    """
    end = (asked := time.monotonic()) + seconds
    while not (value := condition()):
        now = time.monotonic()
        assert now < end, f"not within {seconds} s: {what or condition}"
        time.sleep(max(pause, min(now - asked, _REST_S)))
        asked = time.monotonic()
    return value


def listens(path: Path | str, pid: int | str = "self") -> bool:
    """Whether a program of the network namespace of `pid` listens at the
    socket: its file exists earlier, but refuses connections.
    """
    fields = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()]
    return any(each[3] == _ACCEPTS and each[-1] == str(path) for each in fields)


def pause(pid: int) -> None:
    """SIGSTOP; none of its threads runs any more when this returns."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(pid), what=f"process {pid} stopped")


class Switch:
    """ovsdb-server and ovs-vswitchd of our own below `dir`; started by `start` or by entering it.

    Without `directory` it makes one and removes it again. `environment`: the PRIVATE_SWITCH_* variables of the script. `prefix`
    is what every command is started by: one that enters namespaces, in which `directory` has the same path.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        huge: bool = True,
        environment: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self._prefix = prefix
        self._made = directory is None
        self.dir = directory if directory is not None else Path(tempfile.mkdtemp(prefix="psw-", dir="/tmp"))
        self._options = [] if huge else ["--no-huge"]
        self._environment = os.environ | (environment or {})
        self._statistics_ms = STATISTICS_MS
        self.others: set[str] = set()
        """Bridges of a program that lives on: `clear` leaves them, without their ports."""

    @property
    def ovsdb(self) -> str:
        """The database, as setting `ovsdb` has it."""
        return f"unix:{self.dir}/db.sock"

    @property
    def rundir(self) -> str:
        """OVS_RUNDIR of the switch; its server-mode sockets appear here too."""
        return str(self.dir)

    @property
    def netns(self) -> str:
        """The network namespace in which ovs-vswitchd opens its ports, as setting `switch_netns` has it."""
        return str(self.dir / "netns")

    def start(self) -> Self:
        """Start both daemons; RuntimeError has the script's message with the end of the log."""
        try:
            self._script("start", *self._options)
        except BaseException:
            self._remove()
            raise
        return self

    def stop(self) -> None:
        """End what was started, whatever state it is in."""
        self._script("stop")
        self._remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def ovsdb_pid(self) -> int:
        return int(self._pid_file("ovsdb-server").read_text())

    @property
    def vswitchd_pid(self) -> int:
        return int(self._pid_file("ovs-vswitchd").read_text())

    def pause_ovsdb(self) -> None:
        """SIGSTOP: its sockets accept connections, and nothing answers."""
        pause(self.ovsdb_pid)

    def resume_ovsdb(self) -> None:
        """SIGCONT."""
        os.kill(self.ovsdb_pid, signal.SIGCONT)

    def pause_vswitchd(self) -> None:
        """SIGSTOP: ovsdb-server accepts rows, and ovs-vswitchd does not act on them; it has finished earlier work."""
        self.appctl("version")  # as `clear` does
        pause(self.vswitchd_pid)

    def resume_vswitchd(self) -> None:
        """SIGCONT."""
        os.kill(self.vswitchd_pid, signal.SIGCONT)

    def kill_vswitchd(self) -> None:
        """SIGKILL: control socket, pid file and server-mode sockets stay behind."""
        self._script("kill-vswitchd")

    def restart_vswitchd(self) -> None:
        """Stop it in an orderly way if it runs, and start it."""
        self._script("restart-vswitchd")

    def restart_ovsdb(self) -> None:
        """End ovsdb-server and start it on the same database."""
        self._script("restart-ovsdb")

    def stop_ovsdb(self) -> None:
        """Stop ovsdb-server in an orderly way; ovs-vswitchd continues without it. `restart_ovsdb` starts it again."""
        pid = self.ovsdb_pid
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not runs(pid), what=f"the end of ovsdb-server, process {pid}")

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """In the block ovsdb-server refuses to write, as on a full disk: it is the backup of a server that is not there."""
        self.appctl("-t", "ovsdb-server", "ovsdb-server/set-active-ovsdb-server", f"unix:{self.dir}/nothing")
        self.appctl("-t", "ovsdb-server", "ovsdb-server/connect-active-ovsdb-server")
        try:
            yield
        finally:
            self.appctl("-t", "ovsdb-server", "ovsdb-server/disconnect-active-ovsdb-server")

    def recreate_database(self) -> None:
        """Replace the database by an empty one with the same DPDK configuration, as after `rm conf.db` and a start."""
        config = self.rows("Open_vSwitch")[0]["other_config"]
        self.stop_ovsdb()
        (self.dir / "conf.db").unlink()
        _run("ovsdb-tool", "create", str(self.dir / "conf.db"))
        # before the server starts: an agent that connects at once would find a database of nothing, and look again at a tick
        row = {"op": "insert", "table": "Open_vSwitch", "row": {"other_config": ["map", list(config.items())]}}
        _run("ovsdb-tool", "transact", str(self.dir / "conf.db"), json.dumps(["Open_vSwitch", row]))
        self.restart_ovsdb()

    def listen_tcp(self) -> str:
        """Let ovsdb-server listen on a free TCP port of 127.0.0.1, too; the remote, `tcp:127.0.0.1:PORT`."""
        self.appctl("-t", "ovsdb-server", "ovsdb-server/add-remote", "ptcp:0:127.0.0.1")
        log = self.dir / "ovsdb-server.log"
        lines = wait_until(lambda: [line for line in log.read_text().splitlines() if "listening on port" in line], what=str(log))
        return f"tcp:127.0.0.1:{lines[-1].rsplit(' ', 1)[1]}"

    def vsctl(self, *args: str) -> str:
        """Output of ovs-vsctl without the last newline; RuntimeError has its stderr."""
        return _run(*self._prefix, "ovs-vsctl", f"--db={self.ovsdb}", f"--timeout={CTL_SECONDS}", *args)

    def appctl(self, *args: str) -> str:
        """Output of ovs-appctl, by default of ovs-vswitchd."""
        environment = os.environ | {"OVS_RUNDIR": self.rundir}
        return _run(*self._prefix, "ovs-appctl", f"--timeout={CTL_SECONDS}", *args, environment=environment)

    def write_statistics(self) -> None:
        """Make ovs-vswitchd write its counters into OVSDB now, which it does when its interval changes."""
        self._statistics_ms += 1
        self.vsctl("set", "Open_vSwitch", ".", f"other_config:stats-update-interval={self._statistics_ms}")

    def bridges(self) -> list[str]:
        return self.vsctl("--no-wait", "list-br").splitlines()

    def held(self) -> dict[str, list[str]]:
        """All bridges by name, and by their marks the rows of QoS, Queue and Mirror; one call of ovs-vsctl."""
        tables = ("QoS", "Queue", "Mirror")
        rows = [word for table in tables for word in ("--columns=external_ids", "list", table, "--")]
        lines = self.vsctl("--no-wait", "--format=json", *rows, "list-br").splitlines()
        marks = {
            table: [str(_decoded(row[0])) for row in json.loads(line)["data"]] for table, line in zip(tables, lines, strict=False)
        }
        return {"bridges": lines[len(tables) :], **marks}

    def clear(self) -> None:
        """Remove all bridges but `others`, and rows of QoS and Queue. ovs-vswitchd, if it runs, has finished earlier work."""
        held = self.held()
        is_alive = self._pid_file("ovs-vswitchd").exists() and runs(self.vswitchd_pid)
        waiting = () if is_alive else ("--no-wait",)
        for bridge in held["bridges"]:
            if bridge in self.others:
                for port in self.ports(bridge):
                    self.vsctl(*waiting, "--if-exists", "del-port", port)
            else:
                self.vsctl(*waiting, "--if-exists", "del-br", bridge)
        if held["QoS"] or held["Queue"]:
            self.vsctl("--no-wait", "--all", "destroy", "QoS", "--", "--all", "destroy", "Queue")
        if is_alive:
            self.appctl("version")  # it answers between two pieces of work; newer ones take a second to end a polling thread

    def ports(self, bridge: str) -> list[str]:
        """Names of a bridge's ports, without the local one."""
        return self.vsctl("--no-wait", "list-ports", bridge).splitlines()

    def row(self, table: str, name: str) -> dict[str, Any]:
        """A row by name, columns decoded: map -> dict, set -> list, uuid -> str; {} if there is none."""
        rows = self.rows(table, f"name={name}")
        return rows[0] if rows else {}

    def rows(self, table: str, *conditions: str) -> list[dict[str, Any]]:
        """All rows that meet the conditions of `ovs-vsctl find`."""
        answer = json.loads(self.vsctl("--no-wait", "--format=json", "find", table, *conditions))
        return [dict(zip(answer["headings"], map(_decoded, data), strict=True)) for data in answer["data"]]

    def interface(self, name: str) -> dict[str, Any]:
        """Row of Interface; {} if there is none."""
        return self.row("Interface", name)

    def port(self, name: str) -> dict[str, Any]:
        """Row of Port; {} if there is none."""
        return self.row("Port", name)

    def bridge(self, name: str) -> dict[str, Any]:
        """Row of Bridge; {} if there is none."""
        return self.row("Bridge", name)

    def _pid_file(self, daemon: str) -> Path:
        return self.dir / f"{daemon}.pid"

    def _remove(self) -> None:
        if self._made:
            shutil.rmtree(self.dir, ignore_errors=True)

    def _script(self, command: str, *options: str) -> None:
        done = subprocess.run(
            [*self._prefix, str(SCRIPT), command, *options, str(self.dir)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"private-switch {command} {self.dir}: exit {done.returncode}\n{done.stderr}")


def _run(*argv: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=2 * CTL_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout.rstrip("\n")


def _decoded(value: Any) -> Any:
    match value:
        case ["map", pairs]:
            return {_decoded(key): _decoded(item) for key, item in pairs}
        case ["set", items]:
            return [_decoded(item) for item in items]
        case ["uuid", text]:
            return text
        case _:
            return value

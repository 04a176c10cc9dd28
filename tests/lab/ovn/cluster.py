"""One database on three servers, as OVN's clusters have theirs."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Final

from tests.lab.ovn.central import SCHEMAS
from tests.lab.ovn.started import Started
from tests.lab.processes import runs
from tests.lab.switch.switch import CTL_SECONDS, wait_until

DATABASE: Final = "OVN_Northbound"
SOUTHBOUND: Final = "OVN_Southbound"
_SCHEMAS: Final = {DATABASE: "ovn-nb.ovsschema", SOUTHBOUND: "ovn-sb.ovsschema"}
_TOOLS: Final = {DATABASE: "ovn-nbctl", SOUTHBOUND: "ovn-sbctl"}
_NAMES: Final = ("a", "b", "c")


class Cluster(Started):
    """One of OVN's databases on three servers, with files below `directory`, whose path is short; entering it starts them."""

    def __init__(self, directory: Path, database: str = DATABASE) -> None:
        self._dir = directory
        self._database = database
        self._pids: dict[str, int] = {}
        self._silent: list[int] = []

    def begin(self) -> None:
        for name in _NAMES:
            self._start(name)
        wait_until(lambda: self.leader, what="a leader of the cluster")
        self.ctl("init")

    def stop(self) -> None:
        """End the servers that live."""
        for name in tuple(self._pids):
            self.kill(name)
        while self._silent:
            os.kill(self._silent.pop(), signal.SIGKILL)

    @property
    def remote(self) -> str:
        """The addresses of all servers."""
        return ",".join(self.address(name) for name in _NAMES)

    @property
    def leader(self) -> str:
        """The name of the living server that leads, once all living servers agree on it; "" until then."""
        said = [self._ctl(name, "cluster/status", self._database) for name in self._pids]
        leads = [name for name, status in zip(self._pids, said, strict=True) if "Role: leader" in status]
        known = all("Leader: unknown" not in status and "Status: cluster member" in status for status in said)
        return leads[0] if len(leads) == 1 and known else ""

    @property
    def followers(self) -> tuple[str, ...]:
        """The names of the other living servers."""
        return tuple(name for name in self._pids if name != self.leader)

    def address(self, name: str) -> str:
        """The address of this server."""
        return f"unix:{self._dir}/{name}.sock"

    def ctl(self, *args: str) -> str:
        """Output of ovn-nbctl or ovn-sbctl, which asks the living servers."""
        remote = ",".join(self.address(name) for name in self._pids)
        return self._run(_TOOLS[self._database], f"--db={remote}", f"--timeout={CTL_SECONDS}", *args)

    def kill(self, name: str) -> None:
        """Kill this server."""
        pid = self._pids.pop(name)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not runs(pid), what=f"the end of server {name}")

    def silence(self, name: str) -> None:
        """Stop this server where it is: as one whose machine has died, it neither answers nor closes a connection."""
        pid = self._pids.pop(name)
        self._silent.append(pid)
        os.kill(pid, signal.SIGSTOP)

    def _start(self, name: str) -> None:
        file, local = f"{self._dir}/{name}.db", f"unix:{self._dir}/{name}.raft"
        if self._pids:
            self._run("ovsdb-tool", "join-cluster", file, self._database, local, f"unix:{self._dir}/{_NAMES[0]}.raft")
        else:
            self._run("ovsdb-tool", "create-cluster", file, str(SCHEMAS / _SCHEMAS[self._database]), local)
        files = (f"--pidfile={self._dir}/{name}.pid", f"--log-file={self._dir}/{name}.log", f"--unixctl={self._dir}/{name}.ctl")
        quiet = ("--detach", "--no-chdir", "-vconsole:off", "-vsyslog:off")
        self._run("ovsdb-server", *quiet, *files, f"--remote=p{self.address(name)}", file)
        self._pids[name] = int((self._dir / f"{name}.pid").read_text())

    def _ctl(self, name: str, *args: str) -> str:
        return self._run("ovs-appctl", "-t", f"{self._dir}/{name}.ctl", *args)

    def _run(self, *argv: str) -> str:
        environment = os.environ | {"OVS_RUNDIR": str(self._dir)}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=2 * CTL_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout

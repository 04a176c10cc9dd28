"""OVN over two userspace switches, each with a network namespace as its node, joined by a veth that carries Geneve.

Everything is in userspace: the tunnels' addresses are on a bridge of each switch, where the userspace datapath finds its routes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

from tests.lab.frames.taps import TapProcess
from tests.lab.ovn.central import INTEGRATION, SCHEMAS
from tests.lab.ovn.started import Started
from tests.lab.processes import runs
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import CTL_SECONDS, Switch, wait_until
from tests.lab.switch.veths import inside, veth

NODES: Final = ("n1", "n2")
LONGEST_GAP: Final = "longest gap in ms"
"""The end of the name of a test's property that the run prints, as is `LAST_USE`."""
LAST_USE: Final = "last use in ms"
_DAEMON: Final = ("--detach", "--no-chdir", "-vconsole:off", "-vsyslog:off")
_UNDERLAY, _NIC = "br-phy", "nic0"
_AFTER_S: Final = 1.0
_LONGEST_S: Final = 120
"""When nothing answers any more, the echo requests end."""
_SPARE: Final = 58
"""Bytes that Geneve takes of a frame (over IPv4)."""
MTU: Final = 1500 - _SPARE


class TwoChassis(Started):
    """Below `directory`, whose path is short: databases, northd, and for each node a switch and a controller."""

    def __init__(self, directory: Path) -> None:
        self._dir = directory
        self.switches: dict[str, Switch] = {}
        self._argv: dict[str, list[str]] = {}
        self._environment: dict[str, dict[str, str]] = {}

    def begin(self) -> None:
        for database in ("nb", "sb"):
            file = self._dir / f"{database}.db"
            self._run("ovsdb-tool", "create", str(file), str(SCHEMAS / f"ovn-{database}.ovsschema"))
            control = f"--unixctl={self._dir}/{database}.ctl"
            self._start(database, "ovsdb-server", f"--remote=p{self.remote(database)}", control, str(file))
        self._start("northd", "ovn-northd", f"--ovnnb-db={self.remote('nb')}", f"--ovnsb-db={self.remote('sb')}")
        for number, node in enumerate(NODES, 1):
            self._start_node(node, number)
        one, other = (self.netns(node) for node in NODES)
        veth(one, _NIC, other, _NIC)
        for number, node in enumerate(NODES, 1):
            self._join_underlay(node, f"10.99.0.{number}", f"0a:99:00:00:00:0{number}")
        wait_until(lambda: self.chassis() == set(NODES), what="chassis")

    def add(self, node: str) -> None:
        """A further chassis, whose way to the first one is over the last."""
        number, last = len(self.switches) + 1, self.switches[list(self.switches)[-1]]
        self._start_node(node, number)
        veth(last.netns, f"{_NIC}-{node}", self.netns(node), _NIC)
        last.vsctl("add-port", _UNDERLAY, f"{_NIC}-{node}")
        self._join_underlay(node, f"10.99.0.{number}", f"0a:99:00:00:00:0{number}")
        wait_until(lambda: node in self.chassis(), what=f"chassis {node}")

    def stop(self) -> None:
        """End what runs, the last first."""
        for name in reversed(tuple(self._argv)):
            self.kill(name, signal.SIGTERM)
        while self.switches:
            self.switches.popitem()[1].stop()

    def remote(self, database: str) -> str:
        """Where a database is, "nb" or "sb"."""
        return f"unix:{self._dir}/{database}.sock"

    def netns(self, node: str) -> str:
        return self.switches[node].netns

    def rundir(self, node: str) -> str:
        """Where the node's ovn-controller has its control socket (its OVN_RUNDIR)."""
        return str(self._dir / f"run-{node}")

    def nbctl(self, *args: str) -> str:
        return self._run("ovn-nbctl", f"--db={self.remote('nb')}", f"--timeout={CTL_SECONDS}", *args)

    def sbctl(self, *args: str) -> str:
        return self._run("ovn-sbctl", f"--db={self.remote('sb')}", f"--timeout={CTL_SECONDS}", *args)

    def complaints(self, node: str) -> list[str]:
        """What the node's ovn-controller has said of logical flows that it cannot read."""
        return [line for line in (self._dir / f"{node}.log").read_text().splitlines() if "parsing" in line]

    def revalidate(self, *, forget: bool = True) -> None:
        """Wait until no switch forwards any more by what it remembers of flows that it had before.

        `forget`: also have each datapath look at all of them anew. That of Open vSwitch 3.1 keeps single ones as they were, as
        docs/ovn.md says.
        """
        for switch in self.switches.values():
            switch.appctl("revalidator/wait")
            if forget:
                switch.appctl("dpctl/del-flows")

    def chassis(self) -> set[str]:
        """The names of the chassis that the southbound database has."""
        return set(self.sbctl("--bare", "--columns=name", "list", "Chassis").split())

    def pid(self, name: str) -> int:
        """A daemon's process, by its name as of `kill`."""
        return int((self._dir / f"{name}.pid").read_text())

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a daemon: "nb", "sb", "northd", or the controller of a node by its name; nothing when it does not run."""
        file = self._dir / f"{name}.pid"
        try:
            pid = int(file.read_text())
            os.kill(pid, number)
        except (FileNotFoundError, ProcessLookupError):
            return
        wait_until(lambda: not runs(pid), what=f"the end of {name}")
        file.unlink(missing_ok=True)

    def leave(self, node: str, *options: str) -> None:
        """End the controller of a node as `ovn-appctl exit` does: it takes its chassis out of the database, or not, by option."""
        pid = self.pid(node)
        control = f"{self._dir}/run-{node}/ovn-controller.{pid}.ctl"
        self._run("ovn-appctl", "-t", control, "exit", *options)
        wait_until(lambda: not runs(pid), what=f"the end of {node}")

    def start(self, name: str) -> None:
        """Start it again as it was."""
        self._run(*self._argv[name], environment=self._environment[name])

    @contextmanager
    def pod(self, node: str, logical: str, version: str, address: str, mac: str, *, vhost: bool) -> Iterator[str]:
        """A pod of the UID `version`, with a port of this logical port's name, by a vhost-user socket or a veth; the path of its
        network namespace."""
        switch, short = self.switches[node], logical[-8:]
        ids = (f"external_ids:iface-id={logical}", f"external_ids:iface-id-ver={version}")
        with ExitStack() as stack:
            pod = stack.enter_context(netns())
            if vhost:
                path = f"{switch.rundir}/{short}.sock"
                arguments = [path, "--mode", "server", "--name", "eth0", "--address", address, "--mac", mac, "--mtu", str(MTU)]
                tap = stack.enter_context(TapProcess(pod, *arguments))
                row = ["type=dpdkvhostuserclient", f"options:vhost-server-path={path}", *ids]
                switch.vsctl("add-port", INTEGRATION, short, "--", "set", "Interface", short, *row)
                stack.callback(switch.vsctl, "--if-exists", "del-port", INTEGRATION, short)
                tap.until("ready")
            else:
                veth(switch.netns, short, pod, "eth0")
                inside(pod, "ip", "link", "set", "eth0", "address", mac, "mtu", str(MTU))
                inside(pod, "ip", "address", "add", address, "dev", "eth0")
                inside(pod, "ethtool", "-K", "eth0", "tx", "off")  # else the datapath sends frames without a checksum of TCP
                switch.vsctl("add-port", INTEGRATION, short, "--", "set", "Interface", short, *ids)
                stack.callback(switch.vsctl, "--if-exists", "del-port", INTEGRATION, short)
            wait_until(lambda: switch.interface(short)["external_ids"].get("ovn-installed") == "true", what=f"OVN has {short}")
            yield pod

    def _start_node(self, node: str, number: int) -> None:
        self.switches[node] = Switch(environment={"PRIVATE_SWITCH_PAGES": "256", "PRIVATE_SWITCH_SOCKET_MEM": "128"}).start()
        self._be_chassis(node, f"10.99.0.{number}")

    def _be_chassis(self, node: str, address: str) -> None:
        ids = {
            "system-id": node,
            "hostname": node,
            "ovn-remote": self.remote("sb"),
            "ovn-encap-type": "geneve",
            "ovn-encap-ip": address,
            "ovn-bridge-datapath-type": "netdev",
        }
        switch = self.switches[node]
        switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", *(f'external_ids:{key}="{value}"' for key, value in ids.items()))
        Path(self.rundir(node)).mkdir()
        self._environment[node] = os.environ | {"OVS_RUNDIR": switch.rundir, "OVN_RUNDIR": self.rundir(node)}
        self._start(node, "ovn-controller", switch.ovsdb)

    def _join_underlay(self, node: str, address: str, mac: str) -> None:
        switch = self.switches[node]
        pinned = (f'other_config:hwaddr="{mac}"', "datapath_type=netdev", "fail-mode=standalone")
        switch.vsctl("add-br", _UNDERLAY, "--", "set", "Bridge", _UNDERLAY, *pinned, "--", "add-port", _UNDERLAY, _NIC)
        inside(switch.netns, "ip", "link", "set", _NIC, "up")
        inside(switch.netns, "ip", "address", "add", f"{address}/24", "dev", _UNDERLAY)
        inside(switch.netns, "ip", "link", "set", _UNDERLAY, "up")

    def _start(self, name: str, program: str, *args: str) -> None:
        files = (f"--pidfile={self._dir}/{name}.pid", f"--log-file={self._dir}/{name}.log")
        self._argv[name] = [program, *_DAEMON, *files, *args]
        self._environment.setdefault(name, os.environ | {"OVS_RUNDIR": str(self._dir), "OVN_RUNDIR": str(self._dir)})
        self.start(name)

    def _run(self, *argv: str, environment: dict[str, str] | None = None) -> str:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=2 * CTL_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout.rstrip("\n")


class Pinging:
    """Echo requests, fifty a second, while a block runs; afterwards `gap_s` is the longest time between two answers."""

    def __init__(self, pod: str, address: str) -> None:
        self._argv = ["nsenter", f"--net={pod}", "ping", "-n", "-D", "-i", "0.02", "-w", str(_LONGEST_S), address]
        self.answers: list[float] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, text=True)
        self._await_answer(time.time())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._await_answer(time.time() + _AFTER_S)  # what is late shows, too
        finally:
            self._process.terminate()
            self._process.wait(CTL_SECONDS)
            assert self._process.stdout is not None
            self._process.stdout.close()

    @property
    def gap_s(self) -> float:
        return max((after - before for before, after in zip(self.answers, self.answers[1:], strict=False)), default=0.0)

    def _await_answer(self, since: float) -> None:
        """Read until there is an answer that came after this moment (time.time)."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if (match := re.match(r"\[(\d+\.\d+)\] \d+ bytes from", line)) is not None:
                self.answers.append(float(match[1]))
                if self.answers[-1] > since:
                    return

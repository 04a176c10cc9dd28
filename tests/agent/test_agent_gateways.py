"""What an agent and its commands report of gateways for which the node forwards, or does not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode
from tests.lab.network.gateways import OUTSIDE, everything, forwarding
from tests.lab.network.outside import Wire, wired
from tests.lab.node import agent
from tests.lab.node.forked_node import run_command
from tests.lab.switch.switch import wait_until

TABLE = """
[[gateway]]
bridge = "br0"
addresses = ["10.56.0.1/24", "fd00:56::1/64"]
masquerade = true
"""
DROPPING = "add table ip theirs; add chain ip theirs FWD { type filter hook forward priority 0; policy drop; }"
HOLDS = r"br0-gw (settings )?holds"
LOSES = r"br0-gw (settings )?loses IPv4"
WHERE = "on the way out: at chain ip theirs FWD, by its policy"


class Forwarding:
    """A node with a NIC that forwards, and a gateway in its settings."""

    def __init__(self, live: LiveNode, wire: Wire) -> None:
        self.live = live
        self.wire = wire
        self.settings = live.directory / "network.toml"
        self.settings.write_text(TABLE)
        live.settings |= {"USERSPACE_CNI_CONFIG": str(self.settings), "PATH": f"{os.defpath}:/usr/sbin"}  # nft(8) is there

    def status(self, *more: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of `gateway status`."""
        done = run_command(self.live.environ, "gateway", "status", *more)
        return done.returncode, " ".join(done.stdout.split()), " ".join(done.stderr.split())

    def known(self) -> dict[str, Any]:
        """What the agent reports, without a new trial."""
        _, body = agent.get(self.live.socket, "/api/v1/network")
        found: dict[str, Any] = json.loads(body)
        return found

    def passages(self) -> dict[int, str]:
        """What the agent reports for each IP version."""
        return {each["version"]: each["state"] for each in self.known()["passages"]}

    def left(self) -> frozenset[str]:
        """Links, routes, tables and flows of the node, a line each."""
        assert self.live.switch
        flows = ["ovs-ofctl", "--no-stats", "dump-flows", f"{self.live.switch.rundir}/br0.mgmt"]
        shown = subprocess.run(flows, capture_output=True, text=True, check=True).stdout.splitlines()
        links = self.wire.on_node("sh", "-c", "ip -o link | cut -d: -f2").splitlines()
        return frozenset([*shown, *links, *(line for each in everything(self.live.switch.netns).values() for line in each)])

    def stopped_amid(self) -> subprocess.Popen[bytes] | None:
        """A `gateway status` that is stopped while its link exists; None for one that was too fast."""
        environ = {**os.environ, **self.live.environ}
        argv = [sys.executable, "-m", "userspace_cni", "gateway", "status"]
        command = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while command.poll() is None:
            if "ucout" in self.wire.on_node("ip", "-o", "link"):
                command.send_signal(signal.SIGSTOP)
                if "ucout" in self.wire.on_node("ip", "-o", "link"):
                    return command
                command.send_signal(signal.SIGCONT)
        command.communicate()
        return None


@pytest.fixture
def node(live: LiveNode) -> Iterator[Forwarding]:
    """With the default routes; what is left is undone at the end."""
    assert live.switch
    with wired(live.switch.netns, ("192.0.2.11/24", "2001:db8:2::11/64"), ("192.0.2.1/24", "2001:db8:2::1/64")) as wire:
        wire.on_node("ip", "route", "add", "default", "via", OUTSIDE[0])
        wire.on_node("ip", "-6", "route", "add", "default", "via", OUTSIDE[1])
        with forwarding(live.switch.netns):
            found = Forwarding(live, wire)
            yield found
            wire.on_node("sh", "-c", "nft delete table ip theirs 2> /dev/null; true")
            live.close()
            found.settings.write_text("")
            done = run_command(live.environ, "uninstall", "--force", f"--bin-dir={Path(live.plugin).parent}")
            assert done.returncode == 0
            assert live.switch.rows("Bridge") == []


def test_a_gateway_that_holds_and_passes_nothing(node: Forwarding) -> None:
    """`gateway status` tries at once, names the chain, ends with 1 and never says that the gateway holds.

    Page and metric say the same, and the agent finds changes by itself, too.
    """
    live = node.live.start()
    wait_until(lambda: node.passages() == {4: "passes", 6: "passes"}, what="the first trial")
    code, told, _ = node.status()
    assert (code, bool(re.search(HOLDS, told))) == (0, True)
    node.wire.on_node("nft", DROPPING)
    code, told, lacking = node.status()
    assert (code, bool(re.search(LOSES, told)), WHERE in lacking) == (1, True, True)
    assert "holds" not in told.partition("translation")[0]
    assert agent.metric(live.socket, "userspace_cni_gateway_concern", gateway="br0-gw", what="forwarding of IPv4") == 1
    _, told, _ = node.status("--json")
    passages = json.loads(told)["passages"]
    assert passages[0] == {"gateway": "br0-gw", "version": 4, "state": "lost", "reason": WHERE}
    assert passages[1]["state"] == "passes"
    assert run_command(node.live.environ, "network").returncode == 1
    node.wire.on_node("nft", "delete table ip theirs")
    wait_until(lambda: node.passages()[4] == "passes", what="the agent has tried again by itself")
    assert "forwarding of IPv4 is lost" in live.log.read_text()


def test_without_an_agent(node: Forwarding) -> None:
    """The command makes the trial itself. If the switch does not answer, the result is unknown, and not that gateways hold."""
    live = node.live.start()
    wait_until(lambda: node.known()["specs"] and node.known()["specs"][0]["ready"], what="the gateway")
    live.close()
    code, told, _ = node.status()
    assert (code, bool(re.search(HOLDS, told))) == (0, True)
    node.wire.on_node("nft", DROPPING)
    code, told, lacking = node.status()
    assert (code, bool(re.search(LOSES, told)), WHERE in lacking) == (1, True, True)


def test_killed_amid_a_trial(node: Forwarding) -> None:
    """A command that is killed during its trial leaves no link, route or table, and its flow expires by itself."""
    live = node.live.start()
    wait_until(lambda: node.known()["specs"] and node.known()["specs"][0]["ready"], what="the gateway")
    live.close()
    before = node.left()
    stopped = wait_until(node.stopped_amid, what="a command that was caught")
    assert "ucout" in node.wire.on_node("ip", "-o", "link")
    stopped.kill()
    stopped.communicate()
    wait_until(lambda: not node.left() - before, what="nothing is left")
    assert node.status()[0] == 0
    assert node.left() - before == frozenset()

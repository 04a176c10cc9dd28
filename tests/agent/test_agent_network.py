"""The node's own network as an agent keeps it from its settings, and the commands about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import WITHOUT_API_S, LiveNode
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.definitions import defined_server
from tests.lab.kube.network_objects import GROUP, add
from tests.lab.network.outside import Wire, wired
from tests.lab.node import agent
from tests.lab.node.forked_node import run_command
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.network import commanded

TABLE = """
[[provider_network]]
name = "net1"
interface = "nic0"
move_addresses = true
give_back_after_s = 1
"""
ADDRESS = "192.0.2.11"


class Kept:
    """A node with a NIC, whose settings are a file."""

    def __init__(self, live: LiveNode, wire: Wire) -> None:
        self.live = live
        self.wire = wire
        self.settings = live.directory / "network.toml"
        self.settings.write_text("")
        live.settings["USERSPACE_CNI_CONFIG"] = str(self.settings)

    @property
    def switch(self) -> Switch:
        assert self.live.switch
        return self.live.switch

    def spec(self, text: str) -> None:
        """Write the settings, and make the agent read them."""
        self.settings.write_text(text)
        os.kill(self.live.pid, signal.SIGHUP)

    def specs(self) -> dict[str, dict[str, Any]]:
        _, body = agent.get(self.live.socket, "/api/v1/network")
        return {each["name"]: each for each in json.loads(body)["specs"]}

    def holds(self, name: str = "net1") -> bool:
        """Whether the agent reports that the node has it."""
        return bool(self.specs().get(name, {}).get("ready"))

    def measured(self, name: str) -> str:
        """The metric of the provider network of the settings."""
        _, body = agent.get(self.live.socket, "/metrics")
        labels = f'{{kind="provider-network",name="{name}",source="settings"}} '
        return body.decode().partition(f"userspace_cni_spec_ready{labels}")[2].partition("\n")[0]

    def place(self) -> str:
        """The link that has the node's address."""
        shown = json.loads(self.wire.on_node("ip", "-j", "address", "show"))
        return ",".join(link["ifname"] for link in shown for each in link["addr_info"] if each["local"] == ADDRESS)

    def run(self, *argv: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command of ours on this node."""
        done = run_command(self.live.environ, *argv)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def kept(live: LiveNode) -> Iterator[Kept]:
    """A node without a spec; what is left is undone at the end."""
    assert live.switch
    with wired(live.switch.netns) as wire:
        found = Kept(live, wire)
        yield found
        live.close()
        found.settings.write_text("")
        assert found.run("uninstall", "--force", f"--bin-dir={Path(live.plugin).parent}")[0] == 0
        assert found.switch.rows("Bridge") == []


def test_an_uplink_of_the_settings(kept: Kept) -> None:
    """It is made on SIGHUP, kept by the next agent after kill -9, given back without ovs-vswitchd and taken again, and undone
    without its table.

    The node answers after each of these. A file that is unreadable or missing changes nothing.
    """
    live = kept.live.start()
    kept.spec(TABLE)
    wait_until(kept.holds, what="the uplink")
    assert (kept.place(), kept.wire.answers(ADDRESS)) == ("br-net1", True)
    assert kept.measured("net1") == "1"
    live.kill()
    live.start()
    wait_until(kept.holds, what="the uplink of the next agent")
    assert (kept.place(), kept.wire.answers(ADDRESS)) == ("br-net1", True)
    kept.switch.kill_vswitchd()
    wait_until(lambda: kept.place() == "nic0", what="the address is given back")
    assert kept.wire.answers(ADDRESS)
    kept.switch.restart_vswitchd()
    wait_until(lambda: kept.place() == "br-net1", what="the address is taken again")
    assert kept.wire.answers(ADDRESS)
    wait_until(kept.holds, what="the uplink that was taken again")
    code, told, _ = kept.run("network")
    assert (code, "holds" in told) == (0, True)
    kept.spec(TABLE + "nonsense")
    wait_until(lambda: "cannot be read again" in live.log.read_text(), what="the agent has read")
    kept.settings.unlink()
    agent.get(live.socket, "/api/v1/network", "POST")
    assert (kept.holds(), kept.place()) == (True, "br-net1")
    kept.spec("")
    wait_until(lambda: kept.specs() == {}, what="the uplink is undone")
    assert (kept.place(), kept.switch.rows("Bridge"), kept.wire.answers(ADDRESS)) == ("nic0", [], True)


def test_an_uplink_while_the_database_is_away(kept: Kept) -> None:
    """ovs-vswitchd lives without ovsdb-server, and its bridge's link carries nothing: the addresses go back to the NIC. When the
    database is back they move again, and stay there."""
    live = kept.live.start()
    kept.spec(TABLE)
    wait_until(kept.holds, what="the uplink")
    daemon = kept.switch.vswitchd_pid
    kept.switch.stop_ovsdb()
    try:
        wait_until(lambda: kept.place() == "nic0", what="the address is given back")
        assert kept.wire.answers(ADDRESS)
        wait_until(lambda: "without ovsdb-server" in kept.specs()["net1"]["problem"], what="that the status says why")
    finally:
        kept.switch.restart_ovsdb()
    wait_until(lambda: kept.place() == "br-net1", what="the address is taken again")
    for _ in range(3):
        agent.get(live.socket, "/api/v1/network", "POST")
        assert (kept.holds(), kept.place(), kept.wire.answers(ADDRESS)) == (True, "br-net1", True)
    assert kept.switch.vswitchd_pid == daemon


def test_addresses_of_a_silent_switch_go_before_all_else(kept: Kept) -> None:
    """When the switch is silent during a round of specs that each wait for it, the
    addresses are back on the NIC before the next spec begins.
    """
    live = kept.live.start(SPEC_S=4.0)
    kept.spec(TABLE)
    wait_until(kept.holds, what="the uplink")
    others = (f'[[provider_network]]\nname = "net{each}"\ninterface = "vdev:net_null{each}"\n' for each in (7, 8))
    kept.switch.pause_vswitchd()
    try:
        kept.spec("\n".join(others) + TABLE)
        wait_until(lambda: kept.place() == "nic0", what="the address is given back")
        given_back = "gone back to the NIC"
        wait_until(lambda: given_back in live.log.read_text(), what="that it is told")
        assert live.log.read_text().partition(given_back)[0].count("cannot be met now") <= 1
        assert kept.wire.answers(ADDRESS)
    finally:
        kept.switch.resume_vswitchd()
    wait_until(lambda: kept.place() == "br-net1", 90, "the address is taken again")


def test_what_cannot_be_had(kept: Kept) -> None:
    """Page, metric, `network` and `status` say why a spec cannot be met; the others are met."""
    live = kept.live.start()
    kept.spec(TABLE + '\n[[provider_network]]\nname = "net2"\ninterface = "absent0"\n')
    wait_until(kept.holds, what="the uplink")
    assert "absent0" in kept.specs()["net2"]["problem"]
    assert kept.measured("net2") == "0"
    live.await_metric(1, "spec_failures_total", kind="provider-network")
    code, told, _ = kept.run("network")
    assert (code, "absent0" in told) == (1, True)
    assert "1 of 2 that are desired hold" in kept.run("status")[1]
    code, _, told = kept.run("uplink", "remove", "net1")
    assert (code, "would make it again" in told, kept.place()) == (1, True, "br-net1")


def test_the_bridge_of_ovn_gets_no_uplink(kept: Kept) -> None:
    """It is ovn-controller's: a provider network on it is refused by its name, and the bridge is not made."""
    kept.live.settings["USERSPACE_CNI_OVN_BRIDGE"] = "br-net1"
    kept.live.start()
    kept.spec(TABLE)
    refusal = "bridge br-net1 is OVN's integration bridge"
    wait_until(lambda: refusal in kept.specs().get("net1", {}).get("problem", ""), what="the refusal")
    assert ("br-net1" in kept.switch.bridges(), kept.place()) == (False, "nic0")


def test_commands_without_an_agent(kept: Kept) -> None:
    """`uplink add --dry-run` prints the steps there and back and does nothing; add, status and remove do the work themselves.

    Addresses whose NIC is missing stay until they are given up.
    """
    kept.settings.write_text(TABLE)
    code, told, _ = kept.run("uplink", "add", "net1", "--dry-run")
    assert (code, kept.place()) == (0, "nic0")
    there, back = told.split("the way back:")
    assert f"ip address replace {ADDRESS}/24 dev br-net1 noprefixroute" in there
    assert f"ip address replace {ADDRESS}/24 dev nic0" in back
    assert kept.run("uplink", "add", "net1")[0] == 0
    assert (kept.place(), kept.wire.answers(ADDRESS)) == ("br-net1", True)
    assert kept.run("uplink", "status", "net1")[0] == 0
    assert kept.run("uplink", "status", "net7")[0] == 1
    assert kept.run("check")[0] == 0
    assert kept.run("uplink", "remove", "net1")[0] == 0
    assert (kept.place(), kept.switch.rows("Bridge"), kept.wire.answers(ADDRESS)) == ("nic0", [], True)
    assert kept.run("uplink", "add", "net1")[0] == 0
    kept.wire.on_node("ip", "link", "delete", "nic0")
    code, _, told = kept.run("uplink", "remove", "net1")
    assert (code, "uplink remove NAME --force" in told, kept.place()) == (3, True, "br-net1")
    assert kept.run("uplink", "remove", "net1", "--force")[0] == 0
    assert kept.switch.rows("Bridge") == []
    wait_until(lambda: kept.place() == "", what="the bridge's link goes")


def test_objects_of_the_api(kept: Kept) -> None:
    """A ProviderNetwork is made when it comes, and reported in the NodeState.

    While the server is away the next agent keeps what is there; only what the server reports as gone is removed.
    """
    live = kept.live
    with defined_server() as api:
        api.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        live.follow(api)
        live.settings["USERSPACE_CNI_NETWORK_OBJECTS"] = "true"
        live.start()
        add(api, "ProviderNetwork", "net1", spec={"defaultInterface": "nic0", "moveAddresses": True})
        wait_until(kept.holds, what="the uplink, which no Vlan names")
        assert (kept.place(), kept.specs()["net1"]["source"]) == ("br-net1", "objects")
        wait_until(lambda: _reported(api) == {"net1": True}, what="the NodeState")
        live.kill()
        api.faults.append(Fault(status=503))
        live.start(START_S=WITHOUT_API_S)
        wait_until(lambda: "net1" in kept.specs(), what="the next agent")
        assert (kept.specs()["net1"]["said_by"], kept.place(), kept.wire.answers(ADDRESS)) == ("", "br-net1", True)
        api.faults.clear()
        wait_until(lambda: kept.specs()["net1"]["said_by"], what="the server's word")
        api.objects(f"provider-networks.{GROUP}").remove("", "net1")
        wait_until(lambda: kept.specs() == {}, what="the uplink is undone, once the agent has its second lists")
        assert (kept.place(), kept.switch.rows("Bridge")) == ("nic0", [])


def test_a_nic_to_a_bridge(kept: Kept) -> None:
    """The next agent keeps it, too, until it is removed; with --persist it is in the settings, which take precedence over the
    command.

    A spec that cannot be met is not kept, with or without an agent.
    """
    assert kept.run("nic-to-bridge", "absent0")[0] == 1
    kept.live.start()
    code, told, _ = kept.run("nic-to-bridge", "nic0")
    assert (code, "br-nic0" in told, kept.place()) == (0, True, "br-nic0")
    kept.live.end()
    kept.live.start()
    wait_until(lambda: kept.holds("nic0"), what="the bridge of the next agent")
    assert kept.specs()["nic0"]["source"] == "commands"
    assert kept.run("uplink", "remove", "nic0")[0] == 0
    assert (kept.place(), kept.specs()) == ("nic0", {})
    code, _, told = kept.run("nic-to-bridge", "absent0")
    assert (code, "absent0" in told) == (1, True)
    assert kept.specs() == {}
    assert kept.run("nic-to-bridge", "nic0", "--persist", "--move-addresses=no")[0] == 0
    assert (kept.place(), kept.specs()["nic0"]["source"]) == ("nic0", "settings")
    assert 'interface = "nic0"' in kept.settings.read_text()
    code, _, told = kept.run("nic-to-bridge", "nic0")
    assert (code, "is desired by" in told, kept.place()) == (1, True, "nic0")
    written = kept.settings.read_text()
    assert kept.run("nic-to-bridge", "absent0", "--persist")[0] == 1
    assert (kept.settings.read_text(), list(kept.specs())) == (written, ["nic0"])


def test_a_missing_nic_is_refused_before_anything_is_written(kept: Kept) -> None:
    """Also while the agent answers nothing: neither the settings nor what commands ask for name it afterwards."""
    kept.live.start()
    os.kill(kept.live.pid, signal.SIGSTOP)
    try:
        for options in ((), ("--persist",)):
            code, out, err = kept.run("nic-to-bridge", "absent0", *options)
            assert (code, out) == (1, "")
            assert err == "Error: there is no NIC absent0 on this node; ip link lists the NICs\n"
        run_dir = kept.live.environ["USERSPACE_CNI_RUN_DIR"]
        assert (kept.settings.read_text(), commanded.is_there(run_dir)) == ("", False)
    finally:
        os.kill(kept.live.pid, signal.SIGCONT)


def test_the_former_tool_for_nics(kept: Kept) -> None:
    """Its bridge is called as then, which lasts; a second run changes nothing, and a NIC in use changes no bridge."""
    kept.live.start()
    call = "import sys; from userspace_cni.cli.former_tools import run_util; sys.exit(run_util())"

    def run() -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", call, "nics-to-bridge", "nic0"]
        return subprocess.run(argv, env=kept.live.environ, capture_output=True, text=True, check=False)

    done = run()
    assert (done.returncode, kept.place(), kept.wire.answers(ADDRESS)) == (0, "brnic0", True), done.stderr
    written = kept.settings.read_text()
    assert (run().returncode, kept.settings.read_text()) == (0, written)
    kept.live.kill()
    kept.live.start()
    wait_until(lambda: kept.holds("nic0"), what="the bridge of the next agent")
    assert kept.place() == "brnic0"
    kept.spec(written.replace('bridge = "brnic0"\n', ""))
    wait_until(lambda: "is on bridge brnic0" in kept.specs()["nic0"]["problem"], what="the refusal of another bridge")
    assert (kept.place(), kept.wire.answers(ADDRESS)) == ("brnic0", True)


def _reported(api: ApiServer) -> dict[str, bool]:
    """The specs' statuses in the node's NodeState."""
    states = api.objects(f"nodestates.{GROUP}")
    status = states.read("", "n1").get("status", {}) if ("", "n1") in states.names() else {}
    return {each["name"]: each["ready"] for each in status.get("specs", [])}

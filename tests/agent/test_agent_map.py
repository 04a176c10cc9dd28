"""`map` on a node with real ports: the picture has what records, switch and agent say, and tells what it could not ask."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from tests.agent.living import LiveNode, container, port_of
from tests.cni.spec import succeeded, switch_of
from tests.cni.test_cli_node import cli, decoded
from tests.lab.kube.pods import Pod
from tests.lab.runtimes.runtime import netns

STILL = ("--seconds", "0")


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def ports_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {port["name"]: port for bridge in found["bridges"] for port in bridge["ports"]}


def test_pods_and_ports_of_others(live: LiveNode, sandbox: str) -> None:
    """Pods are below their VLANs with their states, ports of other programs too, and a VLAN changed by hand is a fault."""
    live.start()
    switch, pod = switch_of(live), Pod()
    network = live.network("1.0.0", ipam=live.host_local(), name="blue")
    network["host"]["bridge"]["vlanId"] = 100
    live.empty_dir(pod.uid)
    added = succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    switch.vsctl("add-port", "br-test", "others", "--", "set", "Interface", "others", "type=internal")
    shown = texts(cli(live, "map", *STILL).stdout)
    assert {"bridge br-test", "VLAN 100", "app", "this node's own links", "others"} <= {*shown}
    found = decoded(live, "map", *STILL)
    mine = ports_of(found)[port_of()]
    assert (mine["owner"], mine["state"], mine["addresses"]) == ("default/app", "waiting", [added["ips"][0]["address"]])
    ascii_only = cli(live, "map", *STILL, "--html", "-", PYTHONIOENCODING="ascii").stdout
    assert ascii_only.startswith("<!DOCTYPE html>")
    assert "default/app" in ascii_only
    assert "nowhere" in cli(live, "map", *STILL, "--html", "/nowhere/x.html", code=1).stderr
    assert "give one of them" in cli(live, "map", "--html", "x.html", "--json", code=2).stderr
    assert (found["head"]["agent"].split()[0], found["unasked"], found["asked"]) == ("agent", [], True)
    switch.vsctl("del-port", "br-test", "others")
    assert live.end() == 0
    switch.vsctl("--no-wait", "set", "Port", port_of(), "tag=5")
    differing = ports_of(decoded(live, "map", *STILL, code=1))[port_of()]
    assert (differing["state"], differing["vlan"]["tag"]) == ("differs", 5)
    assert "no agent runs" in texts(cli(live, "map", *STILL, code=1).stdout)[1]
    live.start()
    succeeded(live.run("DEL", network, sandbox))
    live.require_clean()


def test_a_page_replaces_no_device(live: LiveNode) -> None:
    """A device, as /dev/null, and a link stay what they are: the page is written to them. Another file is replaced."""
    device, link, page = (live.directory / name for name in ("device", "link", "page"))
    os.mknod(device, stat.S_IFCHR | 0o600, Path(os.devnull).stat().st_rdev)
    link.symlink_to(page)
    page.write_text("former")
    inode = page.stat().st_ino
    for path in (device, link):
        cli(live, "map", *STILL, "--html", str(path))
    assert stat.S_ISCHR(device.lstat().st_mode)
    assert (link.is_symlink(), page.stat().st_ino) == (True, inode)
    assert page.read_text().startswith("<!DOCTYPE html>")
    cli(live, "map", *STILL, "--html", str(page))
    assert page.stat().st_ino != inode


def test_rates(live: LiveNode, sandbox: str) -> None:
    """What passes between two looks is shown at both ports, in both directions."""
    live.start()
    host = {"iftype": "veth", "port": "af_packet", "bridge": {"bridgeName": "br-test"}}
    network = {"cniVersion": "1.0.0", "name": "net", "type": "userspace", "host": host, "ipam": live.host_local()}
    with netns() as other:
        succeeded(live.run("ADD", network, sandbox))
        result = succeeded(live.run("ADD", network, other, container(1)))
        address = str(result["ips"][0]["address"]).partition("/")[0]
        ping = ["nsenter", f"--net={sandbox}", "ping", "-i", "0.01", "-s", "1000", address]
        with subprocess.Popen(ping, stdout=subprocess.DEVNULL) as pinging:
            found = decoded(live, "map", "--seconds", "0.5")
            pinging.terminate()
        for each in ports_of(found).values():
            assert each["rates"]["out_bits"] > 8000, each
            assert each["rates"]["in_bits"] > 8000, each
        succeeded(live.run("DEL", network, sandbox))
        succeeded(live.run("DEL", network, other, container(1)))
    live.require_clean()


def test_a_dead_switch(live: LiveNode, sandbox: str) -> None:
    """With a dead ovs-vswitchd rows are shown and states are unknown; with a dead OVSDB records alone are shown."""
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    switch = switch_of(live)
    switch.kill_vswitchd()
    try:
        found = decoded(live, "map", code=1)
        assert (ports_of(found)[port_of()]["state"], found["head"]["switch"]) == ("unknown", "ovs-vswitchd is dead")
        assert [each.partition(":")[0] for each in found["unasked"]] == ["the states of links are not known"]
        assert [(each["subject"], each["severity"]) for each in found["faults"]] == [("ovs-vswitchd", "error")]
    finally:
        switch.restart_vswitchd()
    switch.stop_ovsdb()
    try:
        recorded = decoded(live, "map", code=3)
        assert (ports_of(recorded)[port_of()]["state"], recorded["asked"]) == ("unknown", False)
        assert "the switch cannot be asked, and what is shown is from the records" in "".join(recorded["unasked"])
        assert "bridge br-test" in texts(cli(live, "map", code=3).stdout)
    finally:
        switch.restart_ovsdb()
    succeeded(live.run("DEL", live.network(), sandbox))
    live.require_clean()

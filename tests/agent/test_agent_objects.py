"""The node's own network from objects of the API: an agent, a switch, a NIC, and an API server that comes and goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.followed import ADDRESS, Followed
from tests.agent.living import WITHOUT_API_S, LiveNode
from tests.cni.spec import succeeded
from tests.lab.kube.apiserver import Fault
from tests.lab.kube.cluster_objects import node, ours
from tests.lab.kube.definitions import defined_server
from tests.lab.kube.pods import Pod
from tests.lab.network.outside import wired
from tests.lab.node.forked_node import run_command
from tests.lab.switch.switch import Switch, wait_until

UPLINK = {"defaultInterface": "nic0", "moveAddresses": "primary"}


@pytest.fixture
def followed(live: LiveNode) -> Iterator[Followed]:
    """Its API server has the definitions and the node; what is left is undone at the end."""
    switch: Switch | None = live.switch
    assert switch
    with wired(switch.netns) as wire, defined_server() as api:
        api.add(node("n1", ADDRESS))
        found = Followed(live, wire, api)
        yield found
        live.close()
        done = run_command(live.environ, "uninstall", "--force", f"--bin-dir={Path(live.plugin).parent}")
        assert done.returncode == 0, done.stderr


def test_an_uplink_of_objects(followed: Followed) -> None:
    """It is made, gets VLANs, and is undone as the objects say.

    While the API server is away, even if the agent is restarted, no uplink is removed; an object that cannot be met leaves it
    unchanged, and says why.
    """
    api, live = followed.api, followed.live
    api.add(ours("ProviderNetwork", "net1", **UPLINK))
    live.start()
    wait_until(lambda: followed.spec().get("ready"), what="the uplink")
    assert (followed.place(), followed.wire.answers(ADDRESS)) == ("br-net1", True)
    api.add(ours("Vlan", "blue", id=100, provider="net1"))
    wait_until(lambda: followed.trunks() == [0, 100], what="the VLAN")
    reported = api.objects("nodestates.userspace-cni.io")
    wait_until(
        lambda: [each["ready"] for each in reported.read("", "n1")["status"]["specs"]] == [True] if reported.names() else 0
    )

    api.faults.append(Fault(status=404))
    api.close_watches()
    live.kill()
    live.start(START_S=WITHOUT_API_S)
    wait_until(lambda: followed.spec() and api.count("LIST") > 8)
    assert (followed.place(), followed.trunks(), followed.wire.answers(ADDRESS)) == ("br-net1", [0, 100], True)
    api.faults.clear()
    wait_until(lambda: followed.spec().get("source") == "objects" and followed.spec()["ready"])

    api.add(ours("ProviderNetwork", "net1", **UPLINK, exchangeLinkName=True))
    wait_until(lambda: "'exchangeLinkName' is True, which is not built" in followed.spec()["problem"])
    assert (followed.place(), followed.trunks()) == ("br-net1", [0, 100])

    api.objects("provider-networks.userspace-cni.io").remove("", "net1")
    wait_until(lambda: followed.place() == "nic0", what="the address is back on the NIC")
    assert followed.wire.answers(ADDRESS)
    wait_until(lambda: not followed.switch.rows("Bridge"), what="no bridge")


RULES = """
[[rule]]
namespaces = ["*"]
bridges = ["br-net1"]
"""


def object_file(followed: Followed, name: str, **spec: Any) -> str:
    """A file with an object that is not applied, as JSON, which is YAML."""
    path = followed.live.directory / f"{name}.yaml"
    path.write_text(json.dumps(ours("ProviderNetwork", name, **spec)))
    return str(path)


def dry_run(followed: Followed, name: str, *files: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the dry run on the node."""
    argv = ["uplink", "add", name, "--dry-run", *(f"--filename={file}" for file in files)]
    done = run_command(followed.live.environ, *argv)
    return done.returncode, done.stdout, done.stderr


def test_a_dry_run_of_an_object(followed: Followed) -> None:
    """The steps there and back of an object, applied or not, are shown; neither the command nor the agent does anything.

    A refusal, and an object for another node, are reported; nothing is concluded from what cannot be asked.
    """
    api, live = followed.api, followed.live
    api.add(ours("Vlan", "v100", id=100, provider="net1"))
    live.start()
    file = object_file(followed, "net1", **UPLINK)
    code, told, error = dry_run(followed, "net1", file)
    assert code == 0, error
    there, back = told.split("the way back:")
    assert (code, f"ip address replace {ADDRESS}/24 dev br-net1 noprefixroute" in there) == (0, True)
    assert f"ip address replace {ADDRESS}/24 dev nic0" in back
    assert "it carries frames without a tag and VLANs 100\n" in there
    assert (followed.place(), followed.switch.bridges(), followed.spec()) == ("nic0", [], {})
    code, _, told = dry_run(followed, "net1", object_file(followed, "net1", defaultInterface="nic9"))
    assert (code, "there is no NIC nic9 on this node" in told) == (3, True)
    code, _, told = dry_run(followed, "net1", object_file(followed, "net1", excludeNodes=["n1"], **UPLINK))
    assert (code, "ProviderNetwork 'net1' leaves out n1" in told) == (1, True)
    code, _, told = dry_run(followed, "net2")
    assert (code, "--filename takes one that is not applied yet" in told) == (1, True)
    api.add(ours("ProviderNetwork", "net1", **UPLINK))
    wait_until(lambda: followed.spec().get("ready"))
    assert dry_run(followed, "net1")[:2] == (0, "nothing would be done\n")
    code, told, _ = dry_run(followed, "net1", object_file(followed, "net1", **UPLINK, mtu=1400))
    assert (code, "the way back:" in told, followed.place()) == (0, True, "br-net1")
    api.faults.append(Fault("LIST", status=403))
    assert dry_run(followed, "net1", file)[0] != 0
    api.faults.clear()


def test_who_is_told_of_an_uplink(followed: Followed, sandbox: str) -> None:
    """A pod's Events say that its bridge's uplink has lost and regained its link; the NodeState says what cannot be met.

    A refused change makes no Event for pods, because the uplink still works.
    """
    api, live = followed.api, followed.live
    rules = live.directory / "rules.toml"
    rules.write_text(RULES)
    live.settings["USERSPACE_CNI_CONFIG"] = str(rules)
    api.add(ours("Vlan", "v100", id=100, provider="net1"))  # without one the agent awaits another list, and says so
    live.start()
    api.add(ours("ProviderNetwork", "net1", **UPLINK))
    wait_until(lambda: followed.spec().get("ready"))
    pod = Pod()
    pod.create(api)
    host = {"iftype": "veth", "bridge": {"bridgeName": "br-net1"}}
    network = {"cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "host": host}
    succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    followed.wire.on_outside("ip", "link", "set", followed.wire.beyond, "down")
    wait_until(lambda: "UplinkDown" in api.events.of("app"))
    event = api.events.of("app")["UplinkDown"]
    assert event["message"] == "net1: the uplink of its bridge br-net1 carries nothing: nic0 has no link"
    assert event["involvedObject"]["uid"] == pod.uid
    followed.wire.on_outside("ip", "link", "set", followed.wire.beyond, "up")
    wait_until(lambda: "UplinkUp" in api.events.of("app"))
    api.add(ours("ProviderNetwork", "net1", defaultInterface="nic9"))
    words = "there is no NIC nic9 on this node"
    wait_until(lambda: words in api.events.of("n1").get("NetworkNotReady", {}).get("message", ""))
    event = api.events.of("n1")["NetworkNotReady"]
    state = api.objects("nodestates.userspace-cni.io").get("", "n1")
    about = {"kind": "NodeState", "apiVersion": "userspace-cni.io/v1alpha1", "name": "n1", "uid": state["metadata"]["uid"]}
    assert event["involvedObject"] == about
    api.add(ours("ProviderNetwork", "net1", **UPLINK))
    wait_until(lambda: followed.spec().get("ready") and "NetworkReady" in api.events.of("n1"))
    assert api.events.of("app")["UplinkDown"]["count"] == 1
    live.kill()
    followed.wire.on_outside("ip", "link", "set", followed.wire.beyond, "down")
    live.start()  # what an agent finds as it starts is told, too
    wait_until(lambda: api.events.of("app")["UplinkDown"]["count"] == 2)
    succeeded(live.run("DEL", network, sandbox, CNI_ARGS=pod.args))

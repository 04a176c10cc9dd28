"""The mirrors of the node's own settings: an agent has them on their bridges, also after a death and without their table."""

from __future__ import annotations

from tests.agent.living import LiveNode
from tests.cni.spec import succeeded, switch_of
from tests.lab.node.node import CONTAINER
from tests.lab.switch.switch import wait_until

TABLE = '\n[[mirror]]\nname = "m0"\nbridge = "br-test"\noutput = "uc-mirror0"\nselect = "joined"\n'


def test_mirrors_of_the_settings(live: LiveNode, sandbox: str) -> None:
    """Made when the bridge comes, with the ports that join; kept over kill -9; gone with the table; other people's stay.

    A DEL of a chained plugin that was called without an agent is not taken for the attachment's own.
    """
    switch, settings = switch_of(live), live.directory / "mirrors.toml"
    live.settings["USERSPACE_CNI_CONFIG"] = str(settings)
    settings.write_text(TABLE)
    network = live.network(mirrors=[{"name": "m0", "to": True}])
    live.start()
    assert switch.rows("Mirror") == []
    succeeded(live.run("ADD", network, sandbox))
    port = f"{CONTAINER[:12]}-net1"
    row = wait_until(lambda: switch.row("Mirror", "m0"), what="the mirror of the bridge that came")
    assert row["output_port"] == switch.port("uc-mirror0")["_uuid"]
    assert row["select_dst_port"] == switch.port(port)["_uuid"]
    switch.vsctl("--", "--id=@m", "create", "Mirror", "name=theirs", "--", "add", "Bridge", "br-test", "mirrors", "@m")
    live.kill()
    producer = {"cniVersion": "1.1.0", "name": network["name"], "type": "ovs-mirror-producer", "mirrors": [{"name": "x"}]}
    succeeded(live.run("DEL", producer, sandbox))
    assert len(list(live.spool.iterdir())) >= 1
    live.start()
    assert live.states() == ["ready"]
    assert {each["name"] for each in switch.rows("Mirror")} == {"m0", "theirs"}
    live.end()
    settings.write_text("")
    live.start()
    wait_until(lambda: [each["name"] for each in switch.rows("Mirror")] == ["theirs"], what="the mirror is gone")
    assert switch.ports("br-test") == [port]
    succeeded(live.run("DEL", network, sandbox))
    live.require_clean()

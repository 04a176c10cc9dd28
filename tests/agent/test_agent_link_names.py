"""The agent makes no port or bridge again when another program's link has taken its name."""

from __future__ import annotations

from tests.agent.living import LiveNode
from tests.cni.spec import succeeded, switch_of
from tests.lab.switch.switch import wait_until
from tests.lab.switch.taps import add_tap, delete_link, tap

BRIDGE = "vpn0"


def test_a_bridge_is_not_made_again_over_a_tap(live: LiveNode, sandbox: str) -> None:
    """A tap has taken the name of our deleted bridge: the tap stays; when it is removed, the bridge comes back."""
    switch = switch_of(live)
    network = live.network()
    network["host"]["bridge"]["bridgeName"] = BRIDGE
    try:
        live.start()
        succeeded(live.run("ADD", network, sandbox))
        live.kill()
        switch.vsctl("del-br", BRIDGE)
        before = add_tap(switch.netns, BRIDGE)
        live.start()
        wait_until(lambda: f"no bridge or port can have the name {BRIDGE}" in live.log.read_text(), what="the agent says why")
        live.reconcile()
        assert (switch.bridges(), tap(switch.netns, BRIDGE)) == ([], before)
        delete_link(switch.netns, BRIDGE)
        wait_until(lambda: switch.bridges() == [BRIDGE], what="the bridge is there again")
        succeeded(live.run("DEL", network, sandbox))
        assert live.leftovers() == {}
    finally:
        if BRIDGE not in switch.bridges():
            delete_link(switch.netns, BRIDGE)


def test_a_del_while_the_switch_is_dead(live: LiveNode, sandbox: str) -> None:
    """DEL leaves another program's tap alone that replaced a bridge's link, and deletes the link that was ours."""
    switch = switch_of(live)
    network = live.network()
    network["host"]["bridge"]["bridgeName"] = BRIDGE
    live.start()
    try:
        for foreign in (False, True):
            succeeded(live.run("ADD", network, sandbox))
            switch.kill_vswitchd()
            before = {}
            if foreign:
                delete_link(switch.netns, BRIDGE)
                before = add_tap(switch.netns, BRIDGE)
            succeeded(live.run("DEL", network, sandbox))
            assert (switch.bridges(), tap(switch.netns, BRIDGE)) == ([], before)
            switch.restart_vswitchd()
            assert tap(switch.netns, BRIDGE) == before
    finally:
        switch.restart_vswitchd()
        delete_link(switch.netns, BRIDGE)

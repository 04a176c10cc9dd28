"""The programs of ovn-kubernetes' first tools: the options that scripts give them are taken, and what has no effect is named."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from userspace_cni.cli.former_tools import gateway_helper, overlay, util, watcher

DAEMON = ("--pidfile", "--log-file", "-vfile:info", "-vconsole:emer", "--detach")
HELPER = ("--physical-bridge=breth0", "--physical-interface=eth0")
GATEWAY = (
    "gateway-init",
    "--cluster-ip-subnet=192.168.0.0/16",
    "--physical-ip=192.0.2.7/24",
    "--node-name=n",
    "--default-gw=192.0.2.1",
)


@pytest.mark.parametrize(
    ("program", "own", "said"), [(watcher, ("--overlay",), "no account"), (gateway_helper, HELPER, "/nowhere/db.sock")]
)
@pytest.mark.parametrize("own_last", [True, False])
def test_options_of_a_daemon(
    program: click.Command, own: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, *, own_last: bool
) -> None:
    """Those with an optional value take none from what follows, in any order; each is named, and then the program begins."""
    monkeypatch.setenv("USERSPACE_CNI_OVN_NB", "unix:/nowhere/nb.sock")
    monkeypatch.setenv("USERSPACE_CNI_OVSDB", "unix:/nowhere/db.sock")
    done = CliRunner().invoke(program, [*DAEMON, *own] if own_last else [*own, *DAEMON])
    assert done.exit_code in (1, 3)
    first, *_, last = done.output.splitlines()
    assert set(DAEMON) <= set(first.removeprefix("without effect: ").split())
    assert said in last


@pytest.mark.parametrize("nic", ["--physical-interface=eth0", "--bridge-interface=breth0"])
def test_options_of_a_gateway(nic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that scripts have is taken, and its successor named; both kinds of NIC at once are a mistake."""
    monkeypatch.setenv("USERSPACE_CNI_OVN_NB", "unix:/nowhere/nb.sock")
    monkeypatch.setenv("USERSPACE_CNI_OVSDB", "unix:/nowhere/db.sock")
    done = CliRunner().invoke(overlay, [*GATEWAY, nic, "--rampout-ip-subnets=192.168.3.0/24"])
    assert (done.exit_code, "userspace-cni ovn init-gateway" in done.output) == (3, True)
    assert "without effect: --cluster-ip-subnet" in done.output
    assert CliRunner().invoke(overlay, [*GATEWAY, "--physical-interface=eth0", "--bridge-interface=breth0"]).exit_code == 2


def test_bridges_need_nics() -> None:
    """A call without any is a mistake."""
    assert CliRunner().invoke(util, ["nics-to-bridge"]).exit_code == 2

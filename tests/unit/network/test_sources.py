"""The sources of a node's specs: settings that are read again, what commands asked for, and a switch that has gone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from userspace_cni.attachment.records import Record, node_container
from userspace_cni.attachment.specs import UNKNOWN
from userspace_cni.base.errors import Undecodable
from userspace_cni.base.settings import Settings, load
from userspace_cni.network import commanded
from userspace_cni.network.spec_list import COMMANDS, OBJECTS, PROVIDER_NETWORK, Desired
from userspace_cni.network.spec_sources import SettingsSource, SpecSources, SwitchAbsence
from userspace_cni.node.local_node import LocalNode

NET1 = '[[provider_network]]\nname = "net1"\ninterface = "eth1"\n'
MIRROR = '[[mirror]]\nname = "a"\nbridge = "br0"\noutput = "out0"\n'
NET2 = '[[provider_network]]\nname = "net2"\ninterface = "eth2"\n'


def test_settings_are_read_again(tmp_path: Path) -> None:
    """They are read on request only; an unreadable file leaves the specs, and a missing one is no complete list."""
    path = tmp_path / "config.toml"
    path.write_text(NET1)
    environ = {"USERSPACE_CNI_CONFIG": str(path)}
    source = SettingsSource(load(environ), environ)

    def names() -> tuple[bool, list[str]]:
        desired = source.read_desired()
        return desired.complete, [each.name for each in desired.provider_networks] + [each.name for each in desired.mirrors]

    path.write_text(NET1 + NET2 + MIRROR)
    assert names() == (True, ["net1"])
    source.read_again()
    assert names() == (True, ["net1", "net2", "a"])
    path.write_text("nonsense")
    source.read_again()
    assert names() == (True, ["net1", "net2", "a"])
    path.unlink()
    source.read_again()
    assert names() == (False, ["net1", "net2", "a"])
    path.write_text("")
    source.read_again()
    assert names() == (True, [])


def test_a_file_that_comes_back_was_not_read_yet(tmp_path: Path) -> None:
    """Without a file at the start nothing is known, also when it is there again, until it is read."""
    path = tmp_path / "config.toml"
    environ = {"USERSPACE_CNI_CONFIG": str(path)}
    source = SettingsSource(Settings(), environ)
    assert not source.read_desired().complete
    path.write_text(NET1)
    assert not source.read_desired().complete
    source.read_again()
    assert [each.name for each in source.read_desired().provider_networks] == ["net1"]
    assert source.read_desired().complete


def test_one_of_two_settings_files_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other one says is no list then: all stays as it was until both are there, or until the next start."""
    cluster, own = tmp_path / "cluster.toml", tmp_path / "own.toml"
    monkeypatch.setattr("userspace_cni.base.settings.CLUSTER_FILE", str(cluster))
    monkeypatch.setattr("userspace_cni.base.settings.CONFIG_FILE", str(own))
    cluster.write_text(NET1)
    own.write_text(NET2)
    source = SettingsSource(load({}), {})

    def names() -> tuple[bool, list[str]]:
        source.read_again()
        desired = source.read_desired()
        return desired.complete, [each.name for each in desired.provider_networks]

    assert names() == (True, ["net2"])
    own.unlink()
    assert names() == (False, ["net2"])
    own.write_text("")
    assert names() == (True, ["net1"])
    cluster.unlink()
    assert names() == (False, ["net1"])
    source = SettingsSource(load({}), {})
    assert names() == (True, [])


def test_what_commands_ask_for(tmp_path: Path) -> None:
    """It is added, replaced and removed by name; before the first, and when the file cannot be read, nothing is known."""
    run_dir = str(tmp_path)

    def names() -> tuple[bool, list[tuple[str, str]]]:
        desired = commanded.read_command_specs(run_dir)
        return desired.complete, [(each.name, each.interface) for each in desired.provider_networks]

    assert names() == (False, [])
    assert not commanded.remove(run_dir, "net1")
    assert names() == (False, [])
    assert commanded.add(run_dir, "net1", NET1) == ""
    assert commanded.add(run_dir, "net2", NET2, others=True) == ""
    assert commanded.add(run_dir, "net1", NET1.replace("eth1", "eth9")) == NET1
    assert names() == (True, [("net1", "eth9"), ("net2", "eth2")])
    assert commanded.remove(run_dir, "net1")
    assert names() == (True, [("net2", "eth2")])
    (tmp_path / commanded.NAME).write_text("[[provider_network]]\nname = 1\n")
    assert names() == (False, [])
    (tmp_path / commanded.NAME).write_bytes(b"\xff")
    assert names() == (False, [])
    with pytest.raises(Undecodable):
        commanded.add(run_dir, "net1", NET1)


def test_what_commands_asked_for_was_lost(tmp_path: Path) -> None:
    """While the node still has something of it, a new file is no complete list, whatever is added and removed."""
    run_dir = str(tmp_path)
    commanded.add(run_dir, "net1", NET1, others=True)
    commanded.add(run_dir, "net2", NET2)
    assert commanded.remove(run_dir, "net1")
    desired = commanded.read_command_specs(run_dir)
    assert (desired.complete, [each.name for each in desired.provider_networks]) == (False, ["net2"])


def test_how_long_the_switch_has_been_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts from the last look that found it neither dead nor silent; a switch of unknown state counts as alive."""
    clock, state = [10.0], ["alive"]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    absence = SwitchAbsence(lambda: state[0])
    assert absence.look() == 0
    state[0] = "dead"
    assert absence.look() == 0
    clock[0] += 5
    state[0] = "silent"
    assert absence.look() == 5
    clock[0] += 1
    assert absence.seconds == 6
    for alive in ("alive", "unknown"):
        state[0] = alive
        assert absence.look() == 0
        clock[0] += 20
        assert absence.seconds == 0
    state[0] = "silent"
    assert absence.look() == 20
    assert absence.forget() == absence.look() == 0


def test_a_question_that_is_not_answered_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither begins the absence anew nor makes it one: without an answer the time counts from the last one."""
    clock, state = [10.0], ["asked"]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    absence = SwitchAbsence(lambda: state[0])
    assert absence.look() == 0
    clock[0] += 1
    assert absence.look() == 0
    state[0] = "silent"
    clock[0] += 2
    assert absence.look() == 3
    state[0] = "asked"
    clock[0] += 1
    assert absence.look() == 4
    state[0] = "alive"
    assert absence.look() == 0
    state[0] = "asked"
    clock[0] += 1
    assert absence.look() == 0


def test_whether_all_that_is_desired_is_known(tmp_path: Path) -> None:
    """What has lost its record goes only then: not while the API is down, nor while commands may have asked for more."""
    file, run_dir = tmp_path / "network.toml", f"{tmp_path}/run"
    file.write_text("")
    objects = Desired(OBJECTS, complete=True)
    with closing(LocalNode(Settings(state_dir=f"{tmp_path}/state", run_dir=run_dir), {}, resident=True)) as node:
        sources = SpecSources(node, {"USERSPACE_CNI_CONFIG": str(file)}, [lambda: objects])
        assert UNKNOWN in sources.specs()[1]
        objects = Desired(OBJECTS, complete=False)
        assert UNKNOWN not in sources.specs()[1]
        objects = Desired(OBJECTS, complete=True)
        record = Record("ready", COMMANDS, node_container(PROVIDER_NETWORK), "net1", boot_id=node.store.boot_id())
        node.store.journal.write(record)
        assert UNKNOWN not in sources.specs()[1]
        node.store.journal.drop(record)
        commanded.add(run_dir, "net1", NET1, others=True)
        assert UNKNOWN not in sources.specs()[1]

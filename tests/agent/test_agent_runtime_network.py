"""The network that the agent installs for the node's runtimes: when, over which file, how it changes, and how it is removed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode
from tests.lab.node import agent
from tests.lab.node.forked_node import run_command
from tests.lab.switch.switch import wait_until
from userspace_cni.base.settings import load
from userspace_cni.cli.node.install_network import keep_network
from userspace_cni.cli.site import Site
from userspace_cni.cni.conflist import MARK
from userspace_cni.switch import vswitchd

FOREIGN = '{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "bridge"}]}'


class Networks:
    """A node whose settings are a file, and whose directory of runtimes' networks does not exist yet."""

    def __init__(self, live: LiveNode) -> None:
        self.live = live
        self.directory = live.directory / "net.d"
        self.settings = live.directory / "network.toml"
        self.settings.write_text("")
        live.settings["USERSPACE_CNI_CONFIG"] = str(self.settings)
        live.settings["USERSPACE_CNI_CNI_CONF_DIR"] = str(self.directory)

    def listed(self, bridge: str = "br-test", **keys: Any) -> dict[str, Any]:
        """A network of ours as a list of plugins."""
        plugin = {key: value for key, value in self.live.network("1.0.0").items() if key not in ("cniVersion", "name")}
        plugin["host"] = {**plugin["host"], "bridge": {"bridgeName": bridge}}
        return {"cniVersion": "1.0.0", "name": "net", "plugins": [plugin], **keys}

    def file(self, name: str = "10-net.conflist", content: Mapping[str, Any] | None = None) -> Path:
        """A file that is to be installed."""
        path = self.live.directory / name
        path.write_text(json.dumps(self.listed() if content is None else content))
        return path

    def set(self, path: Path | None) -> None:
        """Name the file in the settings, and make a running agent read them."""
        self.settings.write_text(f'cni_conf_file = "{path}"\n' if path else "")

    def hup(self) -> None:
        os.kill(self.live.pid, signal.SIGHUP)

    def names(self) -> list[str]:
        """The names in the runtimes' directory, with what a death leaves."""
        return sorted(path.name for path in self.directory.iterdir()) if self.directory.exists() else []

    def placed(self, name: str = "10-net.conflist") -> dict[str, Any]:
        """The installed file, without its mark."""
        found: dict[str, Any] = json.loads((self.directory / name).read_text())
        assert found.pop(MARK)
        return found

    def spec(self) -> dict[str, Any]:
        """The agent's status of it, after a look."""
        _, body = agent.get(self.live.socket, "/api/v1/network", "POST")
        return next((each for each in json.loads(body)["specs"] if each["kind"] == "runtime-network"), {})

    def install(self, network: str | Path, *options: str) -> tuple[int, str, str]:
        """`install --network`: exit code, stdout and stderr."""
        argv = ["install", f"--bin-dir={Path(self.live.plugin).parent}", f"--network={network}", *options]
        done = run_command(self.live.environ, *argv)
        return done.returncode, done.stdout, done.stderr

    def uninstall(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        done = run_command(self.live.environ, "uninstall", f"--bin-dir={Path(self.live.plugin).parent}")
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def networks(live: LiveNode) -> Networks:
    return Networks(live)


def test_the_setting(networks: Networks) -> None:
    """It is installed when the agent serves, follows its file and its name,
    stays while the agent is away, and goes with the setting.
    """
    live = networks.live
    networks.set(networks.file())
    live.start()
    wait_until(lambda: networks.names() == ["10-net.conflist"], what="the network")
    assert networks.placed() == networks.listed()
    assert (networks.directory / "10-net.conflist").stat().st_mode & 0o777 == 0o600
    networks.file(content=networks.listed("br-other"))
    assert networks.spec()["ready"]
    assert networks.placed() == networks.listed("br-other")
    networks.set(networks.file("20-net.conflist"))
    networks.hup()
    wait_until(lambda: networks.names() == ["20-net.conflist"], what="the other name")
    live.kill()
    assert networks.names() == ["20-net.conflist"]
    live.start()
    assert (networks.spec()["ready"], networks.names()) == (True, ["20-net.conflist"])
    networks.set(None)
    networks.hup()
    wait_until(lambda: networks.names() == [], what="the network's end")
    assert networks.spec() == {}


@pytest.mark.parametrize("daemon", ["ovsdb", "vswitchd"])
def test_not_while_no_pod_can_be_attached(networks: Networks, daemon: str) -> None:
    """While the switch is away nothing is installed, and the agent says what it waits for; what is installed stays."""
    live = networks.live
    assert live.switch
    end, begin = {
        "ovsdb": (live.switch.stop_ovsdb, live.switch.restart_ovsdb),
        "vswitchd": (live.switch.kill_vswitchd, live.switch.restart_vswitchd),
    }[daemon]
    networks.set(networks.file())
    end()
    try:
        live.start()
        spec = networks.spec()
        assert (spec["ready"], networks.names()) == (False, [])
        assert "it waits until pods can be attached" in spec["problem"]
    finally:
        begin()
    wait_until(lambda: networks.names() == ["10-net.conflist"], what="the network")
    end()
    try:
        assert networks.spec()["ready"]
        assert networks.names() == ["10-net.conflist"]
    finally:
        begin()


@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_what_another_program_has_there(networks: Networks, kind: str) -> None:
    """Another's file stays, whatever it is.

    Ours comes when that is removed, and stops being ours when another program replaces it.
    """
    place = networks.directory / "10-net.conflist"
    networks.directory.mkdir()
    if kind == "link":
        other = networks.file("other.conflist", json.loads(FOREIGN))
        place.symlink_to(other)
    elif kind == "directory":
        place.mkdir()
    else:
        place.write_text(FOREIGN)
    networks.set(networks.file())
    live = networks.live.start()
    spec = networks.spec()
    assert (spec["ready"], "another program's file has this name" in spec["problem"]) == (False, True)
    assert (networks.names(), place.is_symlink(), place.is_dir()) == (["10-net.conflist"], kind == "link", kind == "directory")
    place.rmdir() if kind == "directory" else place.unlink()
    wait_until(lambda: networks.spec()["ready"], what="the network")
    assert networks.placed() == networks.listed()
    place.unlink()
    place.write_text(FOREIGN)
    assert not networks.spec()["ready"]
    networks.set(None)
    networks.hup()
    wait_until(lambda: networks.spec() == {}, what="the network's end")
    assert place.read_text() == FOREIGN
    assert live.end() == 0
    assert networks.uninstall()[0] == 0
    assert place.read_text() == FOREIGN


def test_what_becomes_of_it_meanwhile(networks: Networks) -> None:
    """Removed by hand it is installed again, changed by hand it is restored.

    A source file that is missing, or that ADD would refuse, leaves the installed one.
    """
    file = networks.file()
    networks.set(file)
    networks.live.start()
    wait_until(lambda: networks.names() == ["10-net.conflist"], what="the network")
    place = networks.directory / "10-net.conflist"
    written = place.read_text()
    place.unlink()
    wait_until(lambda: networks.names() == ["10-net.conflist"], what="the network again")
    place.write_text(written.replace("br-test", "br-else"))
    wait_until(lambda: place.read_text() == written, what="its content again")
    misspelt = networks.listed()
    misspelt["plugins"][0]["hosst"] = misspelt["plugins"][0].pop("host")
    refused = {
        "misspelt": (misspelt, "hosst"),
        "of another": (json.loads(FOREIGN), "no plugin of it is of type 'userspace'"),
        "no version": ({**networks.listed(), "cniVersion": "9.0.0"}, "9.0.0"),
        "no name": ({key: value for key, value in networks.listed().items() if key != "name"}, "name"),
        "no list": (networks.listed()["plugins"][0], "not a list of plugins"),
        "with the mark": ({**networks.listed(), MARK: "x"}, MARK),
    }
    for content, why in refused.values():
        networks.file(content=content)
        spec = networks.spec()
        assert (spec["ready"], why in spec["problem"]) == (False, True), (why, spec)
        assert place.read_text() == written
    file.write_text(json.dumps(networks.listed())[:-1])
    assert "not JSON" in networks.spec()["problem"]
    file.unlink()
    assert "it does not exist" in networks.spec()["problem"]
    file.write_text(json.dumps(networks.listed("br-new")))
    file.chmod(0o666)
    assert "writable by root alone" in networks.spec()["problem"]
    assert place.read_text() == written
    file.chmod(0o644)
    assert networks.spec()["ready"]
    assert networks.placed() == networks.listed("br-new")


def test_install_and_uninstall(networks: Networks) -> None:
    """`install --network` before an agent, beside one, and `none`; the setting takes precedence; `uninstall` removes all."""
    live, directory = networks.live, networks.directory
    code, told, _ = networks.install(networks.file())
    assert (code, f"the agent puts {directory}/10-net.conflist in place when it serves" in told, networks.names()) == (
        0,
        True,
        [],
    )
    live.start()
    wait_until(lambda: networks.names() == ["10-net.conflist"], what="the network")
    assert networks.spec()["source"] == "install"
    code, told, _ = networks.install(networks.file("20-net.conflist"))
    assert (code, f"{directory}/20-net.conflist is in place" in told, networks.names()) == (0, True, ["20-net.conflist"])
    code, told, _ = networks.install("none")
    assert (code, "the network is taken away" in told, networks.names()) == (0, True, [])
    code, told, _ = networks.install("none")
    assert (code, "no network was installed" in told) == (0, True)
    networks.set(networks.file("30-set.conflist"))
    networks.hup()
    wait_until(lambda: networks.names() == ["30-set.conflist"], what="that of the setting")
    code, _, told = networks.install(networks.file())
    assert (code, "takes precedence over this one" in told, networks.names()) == (1, True, ["30-set.conflist"])
    networks.set(None)
    networks.hup()
    wait_until(lambda: networks.names() == ["10-net.conflist"], what="that of install")
    other = networks.file("50-bad.conflist", json.loads(FOREIGN))
    code, _, told = networks.install(other)
    assert (code, "no plugin of it is of type" in told, networks.names()) == (1, True, ["10-net.conflist"])
    assert networks.install(networks.directory / "net.txt")[0] == 1
    assert live.end() == 0
    assert networks.names() == ["10-net.conflist"]
    (networks.directory / ".10-net.conflist.tmp").write_text("half")
    (directory / "99-other.conflist").write_text(FOREIGN)
    assert networks.uninstall()[:2] == (0, "")
    assert (networks.names(), live.state.exists()) == (["99-other.conflist"], False)


def test_without_an_agent(networks: Networks) -> None:
    """`install --standalone --network` installs it itself; `none` removes it."""
    code, told, why = networks.install(networks.file(), "--standalone")
    assert (code, "is in place" in told, networks.names()) == (0, True, ["10-net.conflist"]), why
    assert networks.placed() == networks.listed()
    code, told, why = networks.install("none", "--standalone")
    assert (code, "is taken away" in told, networks.names()) == (0, True, []), why


def test_a_moment_of_silence(networks: Networks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no agent watches ovs-vswitchd, it has time to answer before the network is refused: a glance proves nothing."""
    monkeypatch.setattr(vswitchd, "GLANCE_SECONDS", 0.0)
    site = Site(load(networks.live.environ), environ=networks.live.environ)
    with closing(site.drivers):
        assert keep_network(str(networks.file()), site, standalone=True).endswith("is in place")
    assert networks.names() == ["10-net.conflist"]
    assert networks.install("none", "--standalone")[0] == 0


def test_another_directory(networks: Networks) -> None:
    """The next agent removes the file from the former directory; a copy that people made there stays."""
    networks.set(networks.file())
    live = networks.live.start()
    wait_until(lambda: networks.names() == ["10-net.conflist"], what="the network")
    (networks.directory / "50-copy.conflist").write_bytes((networks.directory / "10-net.conflist").read_bytes())
    assert live.end() == 0
    former, networks.directory = networks.directory, live.directory / "other" / "net.d"
    live.settings["USERSPACE_CNI_CNI_CONF_DIR"] = str(networks.directory)
    live.start()
    wait_until(lambda: networks.names() == ["10-net.conflist"], what="the network in the other directory")
    assert [path.name for path in former.iterdir()] == ["50-copy.conflist"]


def test_a_state_directory_that_was_lost(networks: Networks) -> None:
    """Its file belongs to another installation then: it stays, and the agent says whose it is."""
    networks.set(networks.file())
    live = networks.live.start()
    wait_until(lambda: networks.names() == ["10-net.conflist"], what="the network")
    live.kill()
    live.state.rename(live.directory / "lost")
    live.start()
    spec = networks.spec()
    assert (spec["ready"], "before its state directory was lost" in spec["problem"]) == (False, True)
    assert networks.names() == ["10-net.conflist"]

"""The tests' own caller behaves as libcni does, with real plugins and a scripted one."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.runtimes.delegates.scripting import Scripted
from tests.lab.runtimes.runtime import CallFailed, NetworkError, Runtime, call, netns, recordings

DEBIAN = Path("/usr/lib/cni")
RESULT = {"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": "/ns", "secret": 1}], "private": 2}


@pytest.fixture
def plugin(tmp_path: Path) -> Scripted:
    """A chained plugin that answers ADD with a result that has private keys."""
    return Scripted(tmp_path / "bin").tell("ADD", answer=RESULT)


@pytest.fixture
def runtime(tmp_path: Path, plugin: Scripted) -> Runtime:
    """A runtime with the list `net` of two scripted plugins, at version 1.1.0."""
    (tmp_path / "net.d").mkdir()
    configure(
        tmp_path,
        cniVersion="1.1.0",
        plugins=[{"type": "scripted", "capabilities": {"mac": True}, "n": 1}, {"type": "scripted", "n": 2}],
    )
    return Runtime(tmp_path / "net.d", [tmp_path / "none", plugin.directory], tmp_path / "cache", {"ONLY": "this"})


def configure(tmp_path: Path, **keys: Any) -> None:
    """Write the configuration list `net`."""
    (tmp_path / "net.d" / "10-net.conflist").write_text(json.dumps({"name": "net", **keys}))


def stdins(plugin: Scripted) -> list[dict[str, Any]]:
    return [json.loads(entry["stdin"]) for entry in plugin.calls()]


class TestCaller:
    """One run of one program."""

    def test_everything_is_recorded(self) -> None:
        """Stdin is written whole; stdout, stderr, status and the processor time of the program are returned."""
        text = b"x" * 300_000
        script = 'cat; echo "$CNI_COMMAND $A" >&2; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit 3'
        made = call(["/bin/sh", "-c", script], "ADD", {"PATH": os.environ["PATH"], "A": "b"}, text)
        assert (made.stdout, made.stderr, made.status) == (text, b"ADD b\n", 3)
        assert 0 < made.cpu <= made.wall * (os.cpu_count() or 1)
        assert call("/usr/bin/env", None, {"A": "b"}).stdout == b"A=b\n"

    def test_the_deadline_kills_the_plugin_alone(self, plugin: Scripted) -> None:
        """A plugin past its deadline is killed as runtimes kill it, and its status says so."""
        plugin.tell("ADD", hang=True)
        assert call(str(plugin.directory / "scripted"), "ADD", {}, b"{}", timeout=0.5).status == -9

    def test_recordings(self, tmp_path: Path) -> None:
        """A recorded call has its variables and the bytes of its stdin."""
        (tmp_path / "r.jsonl").write_text('{"env": {"CNI_COMMAND": "ADD"}, "stdin": "{\\"name\\":\\"\\u00e9\\"}"}\n')
        (recorded,) = recordings(tmp_path / "r.jsonl")
        assert recorded.env == {"CNI_COMMAND": "ADD"}
        assert recorded.stdin == '{"name":"é"}'.encode()


class TestInjection:
    """What libcni puts into stdin and the environment."""

    def test_add(self, runtime: Runtime, plugin: Scripted) -> None:
        """Stdin gets name, version, declared capabilities and the previous result without private keys.

        The environment gets six variables.
        """
        result = runtime.add("net", "c1", "/ns", "net1", "A=1;B=", {"mac": "02:00:00:00:00:01", "ips": []})
        known = {"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": "/ns"}]}
        first, second = stdins(plugin)
        assert first["runtimeConfig"] == {"mac": "02:00:00:00:00:01"}
        assert (first["name"], first["cniVersion"], first["capabilities"]) == ("net", "1.1.0", {"mac": True})
        assert "prevResult" not in first
        assert second["prevResult"] == known == result
        assert "runtimeConfig" not in second
        assert list(first) == sorted(first)
        environment = {key: value for key, value in plugin.calls()[0]["env"].items() if key != "LC_CTYPE"}
        assert environment == {
            "ONLY": "this",
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": "c1",
            "CNI_NETNS": "/ns",
            "CNI_IFNAME": "net1",
            "CNI_ARGS": "A=1;B=",
            "CNI_PATH": ":".join(map(str, runtime.cni_path)),
        }

    def test_the_cache(self, runtime: Runtime, plugin: Scripted, tmp_path: Path) -> None:
        """The final result is cached in libcni's form and place, given to DEL in reverse order, and then removed."""
        runtime.add("net", "c1", "/ns", "net1", "A=1", {"mac": "x"})
        path = tmp_path / "cache" / "results" / "net-c1-net1"
        cached = json.loads(path.read_text())
        assert path.stat().st_mode & 0o777 == 0o600
        assert base64.b64decode(cached.pop("config")) == (tmp_path / "net.d" / "10-net.conflist").read_bytes()
        assert cached == {
            "kind": "cniCacheV1",
            "containerId": "c1",
            "ifName": "net1",
            "networkName": "net",
            "netns": "/ns",
            "cniArgs": [["A", "1"]],
            "capabilityArgs": {"mac": "x"},
            "result": {"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": "/ns"}]},
        }
        runtime.check("net", "c1", "/ns", "net1")
        runtime.delete("net", "c1", "/ns", "net1")
        assert plugin.commands() == ["ADD", "ADD", "CHECK", "CHECK", "DEL", "DEL"]
        assert [stdin["n"] for stdin in stdins(plugin)] == [1, 2, 1, 2, 2, 1]
        assert all(stdin["prevResult"] == cached["result"] for stdin in stdins(plugin)[2:])
        assert not path.exists()

    def test_an_old_version(self, runtime: Runtime, plugin: Scripted, tmp_path: Path) -> None:
        """Below 0.4.0 DEL has no prevResult and there is no CHECK; below 1.1.0 the plugin gets no STATUS and no GC."""
        configure(tmp_path, cniVersion="0.3.1", plugins=[{"type": "scripted"}])
        plugin.tell("ADD", answer={"ips": [{"version": "4", "address": "10.0.0.1/8"}], "interfaces": [{"name": "a", "mtu": 5}]})
        result = runtime.add("net", "c1", "/ns", "net1")
        assert result["interfaces"] == [{"name": "a"}]
        assert result["dns"] == {}
        with pytest.raises(NetworkError):
            runtime.check("net", "c1", "/ns", "net1")
        runtime.status("net")
        runtime.gc("net", [("c1", "net1")])
        runtime.delete("net", "c1", "/ns", "net1")
        assert plugin.commands() == ["ADD", "DEL"]
        assert "prevResult" not in stdins(plugin)[1]

    def test_the_cached_result_in_another_version(self, runtime: Runtime, plugin: Scripted, tmp_path: Path) -> None:
        """After the configuration was upgraded, DEL gets the cached result converted to the new version."""
        configure(tmp_path, cniVersion="0.4.0", plugins=[{"type": "scripted"}])
        plugin.tell("ADD", answer={"ips": [{"version": "4", "address": "10.0.0.1/8"}]})
        runtime.add("net", "c1", "/ns", "net1")
        configure(tmp_path, cniVersion="1.0.0", plugins=[{"type": "scripted"}])
        runtime.delete("net", "c1", "/ns", "net1")
        assert stdins(plugin)[1]["prevResult"] == {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.1/8"}]}

    def test_gc(self, runtime: Runtime, plugin: Scripted) -> None:
        """A stale cached attachment gets its DEL, then GC comes with both keys and without container variables."""
        runtime.add("net", "c1", "/ns", "net1", "A=1")
        runtime.add("net", "c2", "/ns", "net1")
        runtime.gc("net", [("c2", "net1")])
        runtime.gc("net", [("c2", "net1")], with_key=False)
        assert plugin.commands()[4:] == ["DEL", "DEL", "GC", "GC", "GC", "GC"]
        deleted, collected = plugin.calls()[4]["env"], plugin.calls()[6]["env"]
        assert (deleted["CNI_CONTAINERID"], deleted["CNI_ARGS"], deleted["CNI_NETNS"]) == ("c1", "A=1", "/ns")
        assert (collected["CNI_CONTAINERID"], collected["CNI_IFNAME"], collected["CNI_NETNS"]) == ("", "", "")
        valid = [{"containerID": "c2", "ifname": "net1"}]
        assert stdins(plugin)[6]["cni.dev/valid-attachments"] == stdins(plugin)[6]["cni.dev/attachments"] == valid
        assert "cni.dev/valid-attachments" not in stdins(plugin)[8]
        runtime.gc("net", None)
        assert stdins(plugin)[-1]["cni.dev/valid-attachments"] is None

    def test_version(self, runtime: Runtime, plugin: Scripted) -> None:
        """VERSION is asked with dummy variables and nothing but a version on stdin."""
        plugin.tell("VERSION", answer={"cniVersion": "1.1.0", "supportedVersions": ["1.0.0"]})
        assert runtime.version("scripted") == ("1.0.0",)
        (probe,) = plugin.calls()
        assert [probe["env"][f"CNI_{name}"] for name in ("NETNS", "IFNAME", "PATH", "CONTAINERID")] == ["dummy"] * 3 + [""]
        assert json.loads(probe["stdin"]) == {"cniVersion": "1.1.0"}


class TestFailures:
    """What libcni does when a plugin fails."""

    def test_a_failed_add_stops_the_chain(self, runtime: Runtime, plugin: Scripted, tmp_path: Path) -> None:
        """The error has the plugin's code; the rest of the chain is not run, nothing is deleted or cached."""
        plugin.tell("ADD", exit=1, answer={"code": 7, "msg": "no", "details": "why"})
        with pytest.raises(CallFailed, match="no; why") as caught:
            runtime.add("net", "c1", "/ns", "net1")
        assert caught.value.code == caught.value.call.code == 7
        assert plugin.commands() == ["ADD"]
        assert not (tmp_path / "cache").exists()

    @pytest.mark.parametrize(
        ("told", "message"),
        [
            ({"exit": 1}, "no error message: exit status 1"),
            ({"exit": 1, "stderr": "trace"}, "netplugin failed: 'trace'"),
            ({"exit": 1, "stdout": 'log {"code": 7, "msg": "no"}'}, "error parsing its diagnostic message"),
            ({"exit": 1, "answer": {"code": -1, "msg": "no"}}, "error parsing its diagnostic message"),
            ({"exit": 0, "stdout": "log {}"}, "unable to decode the result"),
            ({"kill": "SIGKILL"}, "SIGKILL"),
        ],
    )
    def test_an_answer_that_is_not_one_json_document(
        self, runtime: Runtime, plugin: Scripted, told: dict[str, Any], message: str
    ) -> None:
        """Output other than one JSON object, and no output, are reported as libcni reports them."""
        plugin.tell("ADD", **told)
        with pytest.raises(CallFailed, match=message):
            runtime.add("net", "c1", "/ns", "net1")

    def test_a_failed_del_keeps_the_cache(self, runtime: Runtime, plugin: Scripted) -> None:
        """DEL stops at the first failure, and the next DEL gets the cached result again; GC continues after a failure."""
        runtime.add("net", "c1", "/ns", "net1")
        plugin.tell("DEL", exit=1, answer={"code": 11, "msg": "later"})
        with pytest.raises(CallFailed):
            runtime.delete("net", "c1", "/ns", "net1")
        assert plugin.commands() == ["ADD", "ADD", "DEL"]
        with pytest.raises(ExceptionGroup):
            runtime.gc("net", [])
        assert plugin.commands()[3:] == ["DEL", "GC", "GC"]
        plugin.tell("DEL")
        runtime.delete("net", "c1", "/ns", "net1")
        assert stdins(plugin)[-1]["prevResult"]["interfaces"] == [{"name": "net1", "sandbox": "/ns"}]

    def test_status_stops_at_the_first(self, runtime: Runtime, plugin: Scripted) -> None:
        """STATUS returns the code of the first plugin that is not ready."""
        plugin.tell("STATUS", exit=1, answer={"code": 51, "msg": "down"})
        with pytest.raises(CallFailed) as caught:
            runtime.status("net")
        assert caught.value.code == 51
        assert plugin.commands() == ["STATUS"]


class TestDiscovery:
    """Which configuration is used for a network's name."""

    def test_lists_and_single_plugins(self, runtime: Runtime, tmp_path: Path) -> None:
        """A list is preferred; a single plugin is made into a list; a folder of the network's name adds plugins."""
        conf = tmp_path / "net.d"
        (conf / "00.conf").write_text('{"name": "net", "type": "other"}')
        (conf / "05.json").write_text('{"name": "single", "cniVersion": "1.0.0", "type": "other"}')
        (conf / "net").mkdir()
        (conf / "net" / "a.conf").write_text('{"type": "added"}')
        assert [plugin["type"] for plugin in runtime.network("net").plugins] == ["scripted", "scripted", "added"]
        single = runtime.network("single")
        assert (single.version, [plugin["type"] for plugin in single.plugins]) == ("1.0.0", ["other"])
        configure(tmp_path, plugins=[{"type": "scripted"}], loadOnlyInlinedPlugins="true")
        assert len(runtime.network("net").plugins) == 1
        with pytest.raises(NetworkError):
            runtime.network("nothing")

    def test_the_version_is_the_highest_that_the_library_has(self, runtime: Runtime, tmp_path: Path) -> None:
        """The highest version in cniVersion and cniVersions counts, up to the library's own; without any it is 0.1.0."""
        configure(tmp_path, cniVersion="0.4.0", cniVersions=["1.0.0", "2.0.0"], plugins=[{"type": "scripted"}])
        assert runtime.network("net").version == "1.0.0"
        configure(tmp_path, plugins=[{"type": "scripted"}], disableCheck="true")
        assert runtime.network("net").version == "0.1.0"
        assert runtime.network("net").disable_check


class TestRealPlugins:
    """Debian's plugins, with a namespace for their host and one for the container."""

    @pytest.fixture
    def namespaces(self) -> Iterator[tuple[str, str]]:
        """The host's and the container's network namespace."""
        with netns("host") as host, netns() as container:
            yield host, container

    def links(self, namespace: str) -> dict[str, dict[str, Any]]:
        command = ["nsenter", f"--net={namespace}", "ip", "-json", "address"]
        listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return {link["ifname"]: link for link in listed}

    def test_a_chain_through_its_life(self, tmp_path: Path, namespaces: tuple[str, str]) -> None:
        """ptp with static addresses, then tuning: CHECK finds what ADD made,
        and DEL removes it, all within the two namespaces.
        """
        host, container = namespaces
        ipam = {"type": "static", "addresses": [{"address": "10.77.0.2/24", "gateway": "10.77.0.1"}]}
        tuning = {"type": "tuning", "capabilities": {"mac": True}, "dataDir": str(tmp_path / "tuning")}
        (tmp_path / "net.d").mkdir()
        configure(tmp_path, cniVersion="1.0.0", plugins=[{"type": "ptp", "ipam": ipam}, tuning])
        runtime = Runtime(tmp_path / "net.d", [DEBIAN], tmp_path / "cache", os.environ, host_netns=host)
        assert "1.0.0" in runtime.version("ptp")
        before = set(self.links("/proc/self/ns/net"))
        result = runtime.add("net", "c1", container, "eth0", capability_args={"mac": "02:00:00:00:77:02"})
        entry = next(item for item in result["interfaces"] if item.get("sandbox"))
        assert entry["name"] == "eth0"
        assert entry["sandbox"] == container
        assert result["ips"][0]["address"] == "10.77.0.2/24"
        assert self.links(container)["eth0"]["address"] == "02:00:00:00:77:02"
        assert len(self.links(host)) == 2
        runtime.check("net", "c1", container, "eth0", capability_args={"mac": "02:00:00:00:77:02"})
        runtime.delete("net", "c1", container, "eth0", capability_args={"mac": "02:00:00:00:77:02"})
        runtime.delete("net", "c1", container, "eth0")
        assert set(self.links(container)) == set(self.links(host)) == {"lo"}
        assert set(self.links("/proc/self/ns/net")) == before
        assert all(made.cpu > 0 for made in runtime.calls)

    def test_a_namespace_goes_with_its_mount(self) -> None:
        """Each sandbox is a new network namespace at its path, and is removed at the end."""
        with netns("cni-x") as path:
            assert Path(path).name == "cni-x"
            assert Path(path).stat().st_ino != Path("/proc/self/ns/net").stat().st_ino
            assert set(self.links(path)) == {"lo"}
        assert not Path(path).parent.exists()
        assert path not in Path("/proc/self/mounts").read_text()

"""The sidecar's process as virt-launcher uses it: it is found, called, called again, and told to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

import grpc
import pytest

from kubevirt.protocol import info_pb2, v1alpha3_pb2
from tests.lab.guests.hooks import (
    CALLBACK_S,
    INFO_S,
    PLUGIN_HOOKS,
    HookError,
    HookManager,
    NotReady,
    Sidecar,
    call,
    dialled,
    encoded,
    plugin_hook,
    vmi,
)
from tests.lab.switch.switch import wait_until

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(__file__).parent / "data"
DOMAIN = (DATA / "domain-hooks.xml").read_text()
HUGE = """<domain type='kvm'><name>default_vm1</name><memory unit='KiB'>1048576</memory>
  <memoryBacking><hugepages/><source type='memfd'/></memoryBacking><devices/></domain>"""
VMI = vmi(net1="vhostuser", net2="passt")
UNTOLD = {"NETWORK_BINDING_PLUGIN_NAME": ""}
"""KubeVirt before 1.9; before 1.6 it has no CONTAINER_NAME either."""


@pytest.fixture
def volume() -> Iterator[Path]:
    """The hooks volume of a launcher pod. Its paths are as short as in a pod."""
    with TemporaryDirectory(prefix="uk-") as directory:
        yield Path(directory)


def sockets(xml: str) -> list[str]:
    """Paths of the vhost-user interfaces in a definition."""
    found = ET.fromstring(xml).findall("devices/interface[@type='vhostuser']/source")
    return [source.attrib["path"] for source in found]


def test_a_conversation(volume: Path) -> None:
    """The sidecar is found, names its hooks, adds only the bound interface, and changes nothing when it gets its own answer."""
    with Sidecar(volume) as sidecar:
        manager = HookManager(volume).collect()
        (callback,) = manager.callbacks
        assert callback.version == "v1alpha3"
        assert callback.points == {"OnDefineDomain", "Shutdown"}
        assert callback.info.name == "network-vhostuser-binding"
        defined = manager.on_define_domain(HUGE, VMI)
        assert sockets(defined) == ["/var/run/kubevirt/vhostuser/pod6c270ef2f25.sock"]
        assert manager.on_define_domain(defined, VMI) == defined
        assert manager.on_define_domain(HUGE, VMI) == defined
        assert sidecar.end() == 0
    assert list(sidecar.hooks.iterdir()) == []


@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2", "v1alpha3"])
def test_each_version(volume: Path, version: str) -> None:
    """A KubeVirt that knows one version of the hooks gets the same answer as the newest KubeVirt."""
    with Sidecar(volume):
        defined = HookManager(volume, [version]).collect().on_define_domain(HUGE, VMI)
        assert defined == HookManager(volume).collect().on_define_domain(HUGE, VMI)
        assert len(sockets(defined)) == 1


@pytest.mark.parametrize("version", ["v1alpha2", "v1alpha3"])
def test_cloud_init_is_passed_through(volume: Path, version: str) -> None:
    """PreCloudInitIso returns both forms of the data byte for byte."""
    with Sidecar(volume):
        manager = HookManager(volume, [version]).collect()
        assert manager.pre_cloud_init_iso(b'{"userData":"a"}', b"\x00\xff{}", VMI) == (b'{"userData":"a"}', b"\x00\xff{}")


def test_a_real_definition(volume: Path) -> None:
    """A definition from KubeVirt's own tests is served, whatever else is in it."""
    with Sidecar(volume):
        defined = HookManager(volume).collect().on_define_domain(DOMAIN, VMI)
    before, after = (ET.fromstring(xml) for xml in (DOMAIN, defined))
    assert len(after.findall("devices/interface")) == len(before.findall("devices/interface")) + 1
    assert after.findtext("uuid") == before.findtext("uuid")


def test_shutdown(volume: Path) -> None:
    """Shutdown is answered. Then the process ends by itself, and its socket is gone."""
    with Sidecar(volume) as sidecar:
        HookManager(volume).collect().shutdown()
        assert sidecar.end(None) == 0
        assert list(sidecar.hooks.iterdir()) == []
        assert "msg=ended" in sidecar.log


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(volume: Path, sign: signal.Signals) -> None:
    """Each of the two signals ends the process with 0, with nothing left on the disk and nothing in the log."""
    with Sidecar(volume) as sidecar:
        assert sidecar.end(sign) == 0
        assert list(sidecar.hooks.iterdir()) == []
        assert "Traceback" not in sidecar.log


@pytest.mark.parametrize("_round", range(4))
def test_a_signal_before_it_serves(volume: Path, _round: int) -> None:
    """A pod that is deleted while its sidecar starts does not wait for it."""
    with Sidecar(volume).start(wait=False) as sidecar:
        status = Path(f"/proc/{sidecar.pid}/status")
        wait_until(lambda: "SigBlk:\t0000000000004002" in status.read_text(), what="the signals to be held")
        assert sidecar.end() == 0
        assert list(sidecar.hooks.iterdir()) == []


def test_a_callback_in_progress(volume: Path, tmp_path: Path) -> None:
    """While a callback waits for its source, Info is answered. SIGTERM ends it and the process before the wait is over."""
    podinfo = tmp_path / "network-info"
    podinfo.write_text("")
    with Sidecar(volume, USERSPACE_CNI_KUBEVIRT_PODINFO=str(podinfo)) as sidecar:
        with dialled(sidecar.socket) as channel:
            ask = channel.unary_unary(
                "/kubevirt.hooks.v1alpha3.Callbacks/OnDefineDomain",
                v1alpha3_pb2.OnDefineDomainParams.SerializeToString,
                v1alpha3_pb2.OnDefineDomainResult.FromString,
            )
            waiting = ask.future(v1alpha3_pb2.OnDefineDomainParams(domainXML=HUGE.encode(), vmi=encoded(VMI)), timeout=CALLBACK_S)
            # on one connection, what was sent first is there first
            info = call(channel, info_pb2, "Info.Info", info_pb2.InfoParams(), INFO_S)
            assert list(info.versions) == ["v1alpha1", "v1alpha2", "v1alpha3"]
            assert not waiting.done()
            assert sidecar.end() == 0
            assert waiting.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        assert "domain defined" not in sidecar.log
        assert list(sidecar.hooks.iterdir()) == []


def test_two_bindings(volume: Path) -> None:
    """One image under two names serves a VM that uses both: each adds its own interface, at a socket of its own."""
    both = vmi(net1="vhostuser", net2="dpdk-fast")
    first = Sidecar(volume, "hook-sidecar-0")
    second = Sidecar(volume, "hook-sidecar-1", NETWORK_BINDING_PLUGIN_NAME="dpdk-fast")
    with first, second:
        manager = HookManager(volume).collect(2)
        assert {callback.path.name for callback in manager.callbacks} == {
            "vhostuser-hook-sidecar-0.sock",
            "dpdk-fast-hook-sidecar-1.sock",
        }
        assert len(sockets(manager.on_define_domain(HUGE, both))) == 2
        manager.shutdown()
        assert (first.end(None), second.end(None)) == (0, 0)


def test_two_bindings_in_one_directory(volume: Path) -> None:
    """An older KubeVirt gives all sidecars one directory, and no binding's name: each image's variables have it."""
    named = {"USERSPACE_CNI_KUBEVIRT_BINDING": "slow", "USERSPACE_CNI_KUBEVIRT_OTHER_BINDINGS": "vhostuser"}
    first = Sidecar(volume, "", **UNTOLD, USERSPACE_CNI_KUBEVIRT_OTHER_BINDINGS="passt, slow")
    with first, Sidecar(volume, "", **UNTOLD, **named):
        manager = HookManager(volume, flat=True).collect(2)
        assert len({callback.path.name for callback in manager.callbacks}) == 2
        assert len(sockets(manager.on_define_domain(HUGE, vmi(net1="vhostuser", net2="slow")))) == 2


@pytest.mark.parametrize("container", ["", "hook-sidecar-0"], ids=["1.5", "1.8"])
def test_two_bindings_of_one_image_before_their_names_are_told(volume: Path, container: str) -> None:
    """A VM with both bindings is refused, with interface, binding and remedies: it would lack the second's interface."""
    both = vmi(net1="vhostuser", net2="slow")
    with Sidecar(volume, container, **UNTOLD):
        (callback,) = HookManager(volume, flat=not container).collect().callbacks
        with pytest.raises(HookError) as refused:
            callback.on_define_domain(HUGE, both)
        assert refused.value.code == "FAILED_PRECONDITION"
        for part in ("VM default/vm1", "'net2'", "'slow'", "(other-binding)", "OTHER_BINDINGS=slow", "binding 'vhostuser'"):
            assert part in refused.value.details
        assert len(sockets(callback.on_define_domain(HUGE, vmi(net1="vhostuser", net2="vhostuser")).decode())) == 2


def test_an_interface_that_another_added_is_none_that_is_lost(volume: Path) -> None:
    """Without the binding's name, interfaces that KubeVirt or an earlier sidecar put into the definition are accepted.

    Interfaces without a binding, and absent ones, are no sidecar's.
    """
    tap = "<interface type='ethernet'><alias name='ua-net2'/></interface>"
    there = HUGE.replace("<devices/>", f"<devices>{tap}</devices>")
    leaving = vmi(net1="vhostuser", net2="macvtap")
    leaving["spec"]["domain"]["devices"]["interfaces"][1]["state"] = "absent"
    plain = vmi(net1="vhostuser")
    plain["spec"]["domain"]["devices"]["interfaces"].append({"name": "default", "masquerade": {}})
    with Sidecar(volume, **UNTOLD):
        manager = HookManager(volume).collect()
        defined = manager.on_define_domain(there, vmi(net1="vhostuser", net2="macvtap"))
        assert len(sockets(defined)) == 1
        assert tap in defined
        assert manager.on_define_domain(HUGE, leaving) == manager.on_define_domain(HUGE, plain)


def test_calls_at_once(volume: Path) -> None:
    """Callbacks of several connections at once get the same answer."""
    with Sidecar(volume), ThreadPoolExecutor(6) as threads:
        callback = HookManager(volume).collect().callbacks[0]
        answers = list(threads.map(lambda _: callback.on_define_domain(HUGE, VMI), range(24)))
    assert len(set(answers)) == 1


@pytest.mark.parametrize("hook", PLUGIN_HOOKS)
def test_structured_plugin(volume: Path, hook: str) -> None:
    """The hook of each version gives what the callbacks give, in every context, and leaves other definitions alone."""
    plugin = volume / "plugin"
    plugin.mkdir()
    path = plugin / "vhostuser.sock"
    with Sidecar(volume, USERSPACE_CNI_KUBEVIRT_PLUGIN_SOCKET=str(path)) as sidecar:
        defined = HookManager(volume).collect().on_define_domain(HUGE, VMI)
        for context in ("Boot", "MigrationSource", "MigrationTarget", ""):
            assert plugin_hook(path, HUGE, VMI, context, hook=hook) == defined
        assert f"hook={hook}/MigrationTarget" in sidecar.log
        assert plugin_hook(path, HUGE, vmi(net1="passt"), hook=hook) == HUGE
        assert plugin_hook(path, "no XML", VMI, kind="mshv", hook=hook) == "no XML"
        with pytest.raises(HookError) as refused:
            plugin_hook(path, "no XML", VMI, hook=hook)
        assert refused.value.code == "INVALID_ARGUMENT"
        assert sidecar.end() == 0
    assert list(plugin.iterdir()) == []


def test_structured_plugin_alone(volume: Path) -> None:
    """Without a directory for hooks only the plugin's socket is served."""
    path = volume / "x.sock"
    missing = {"USERSPACE_CNI_KUBEVIRT_HOOKS_DIRECTORY": str(volume / "none")}
    with Sidecar(volume, **missing).start("--plugin-socket", str(path)) as sidecar:
        assert len(sockets(plugin_hook(path, HUGE, VMI))) == 1
        assert "level=warning" in sidecar.log
        assert list(sidecar.hooks.iterdir()) == []


def test_nothing_of_a_vm_is_in_the_log(volume: Path) -> None:
    """The log has one line for each callback, with VM, network and source, and nothing from the definition or the VMI."""
    secret = "c2VjcmV0LW9mLXRoZS1ndWVzdA"
    guest = {**VMI, "spec": {**VMI["spec"], "volumes": [{"cloudInitNoCloud": {"userData": secret}}]}}
    with Sidecar(volume) as sidecar:
        manager = HookManager(volume).collect()
        manager.on_define_domain(HUGE.replace("<devices/>", f"<devices/><description>{secret}</description>"), guest)
        with pytest.raises(HookError):
            manager.callbacks[0].on_define_domain(f"<domain>{secret}", guest)
        defined = [line for line in sidecar.log.splitlines() if 'msg="domain defined"' in line]
        assert len(defined) == 1
        assert "vm=default/vm1 networks=net1 sources=net1:path changed=yes ms=" in defined[0]
        assert secret not in sidecar.log
        assert all(re.match(r"time=\S+Z level=[a-z]+ msg=", line) for line in sidecar.log.splitlines())


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the process with other arguments until it ends."""
    argv = [sys.executable, "-m", "kubevirt", *arguments]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_version_is_the_projects() -> None:
    """--version prints the project's version, and the commit where the image has a record of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run("--version").stdout == f"{project} (commit unknown)\n"


def test_help_names_the_variables() -> None:
    """--help names the environment variable of each option, because KubeVirt can pass options only as variables."""
    shown = run("--help").stdout
    for name in ("HOOKS_DIRECTORY", "PLUGIN_SOCKET", "BINDING", "OTHER_BINDINGS", "MTU", "LIBVIRT", "PODINFO", "CLAIMS"):
        assert f"USERSPACE_CNI_KUBEVIRT_{name}" in shown


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("MTU", "1500", "off, element, override, auto"),
        ("LIBVIRT", "new", "'new' is not a version"),
        ("LIBVIRT", "-1.-2", "is not a version"),
    ],
)
def test_a_wrong_variable(name: str, value: str, told: str) -> None:
    """A variable with a wrong value is an error at the start, as the option is, and not at the first VM."""
    done = run(**{f"USERSPACE_CNI_KUBEVIRT_{name}": value})
    assert done.returncode == 2
    assert told in done.stderr


@pytest.mark.parametrize("version", ["12.8.0", "12.8", "12.8.0-1.el9"])
def test_the_mtu_policy_arrives(volume: Path, version: str) -> None:
    """Variables about the MTU decide about definitions: the element is written if libvirt is said to accept it."""
    told = {"USERSPACE_CNI_KUBEVIRT_MTU": "auto", "USERSPACE_CNI_KUBEVIRT_LIBVIRT": version}
    annotated = {**VMI, "metadata": {**VMI["metadata"], "annotations": {"userspace/vhostuser": '{"net1": {"mtu": 9000}}'}}}
    with Sidecar(volume, **told):
        defined = HookManager(volume).collect().on_define_domain(HUGE, annotated)
    assert [mtu.get("size") for mtu in ET.fromstring(defined).findall("devices/interface/mtu")] == ["9000"]


def test_a_log_that_nobody_takes(volume: Path) -> None:
    """With all three standard files closed the sidecar works and ends as usual, and no socket gets one of their numbers."""
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable]
    with Sidecar(volume).start(wait=False, python=closed) as sidecar:
        manager = HookManager(volume).collect()
        assert len(sockets(manager.on_define_domain(HUGE, VMI))) == 1
        files = Path(f"/proc/{sidecar.pid}/fd")
        assert {str((files / str(number)).readlink()) for number in range(3)} == {os.devnull}
        assert sidecar.end() == 0
        assert list(sidecar.hooks.iterdir()) == []


def test_a_binding_of_unknown_name(volume: Path) -> None:
    """A VM whose interface has another binding than the sidecar's is refused with a remedy, not started without network."""
    with Sidecar(volume, NETWORK_BINDING_PLUGIN_NAME="", USERSPACE_CNI_KUBEVIRT_BINDING="") as sidecar:
        assert (sidecar.hooks / "vhostuser-hook-sidecar-0.sock").is_socket()
        callback = HookManager(volume).collect().callbacks[0]
        with pytest.raises(HookError) as refused:
            callback.on_define_domain(HUGE, vmi(net1="ovs"))
        assert refused.value.code == "FAILED_PRECONDITION"
        assert "(other-binding)" in refused.value.details
        assert "USERSPACE_CNI_KUBEVIRT_BINDING" in refused.value.details
        absent = vmi(net1="vhostuser")
        absent["spec"]["domain"]["devices"]["interfaces"][0]["state"] = "absent"
        assert callback.on_define_domain(HUGE, absent) == HUGE.encode()


def test_a_channel_is_gone_after_the_end(volume: Path) -> None:
    """After the end no server answers, and a new sidecar of the same container takes its place."""
    with Sidecar(volume) as first:
        assert first.end() == 0
        with pytest.raises(NotReady), dialled(first.socket, 0.2):
            raise AssertionError("connected")
    with Sidecar(volume):
        assert HookManager(volume).collect().callbacks[0].version == "v1alpha3"

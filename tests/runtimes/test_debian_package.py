"""The Debian package on a fresh Debian 12 that systemd runs: installed, upgraded and removed as an administrator does it.

Two network namespaces stand for two pods. Each has a port on OVS-DPDK, and `tap` makes a kernel link of it, so that pings show
whether frames pass. The application is a copy of the program that the package knows nothing of, as it would be in a pod's image.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.lab.packages import built_package
from tests.lab.packages.debian_machine import DebianMachine, more_pages
from tests.lab.pages import ROOT
from tests.lab.samples import check_sample
from tests.lab.switch.switch import wait_until

pytestmark = pytest.mark.timeout(900)  # the first run on a machine makes a Debian, and the package
PAGE: Final = ROOT / "docs" / "install.md"
PACKAGE: Final = "/root/userspace-cni_0.1.0_amd64.deb"
LATER: Final = "/root/userspace-cni_0.1.1_amd64.deb"
SWITCH: Final = """
update-alternatives --quiet --set ovs-vswitchd /usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk
ovs-vsctl --no-wait set Open_vSwitch . other_config:dpdk-init=true other_config:dpdk-lcore-mask=0x1 \\
    other_config:pmd-cpu-mask=0x2 other_config:pmd-maxsleep=1000 \\
    other_config:dpdk-extra=--no-pci other_config:dpdk-socket-mem=256 other_config:dpdk-socket-limit=1024
systemctl restart openvswitch-switch
"""
CALLS: Final = """
call() {
    echo '{"cniVersion": "1.1.0", "name": "dpdk-net", "type": "userspace"}' | CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_IFNAME=net1 \\
        CNI_NETNS=/run/netns/$2 CNI_PATH=/opt/cni/bin /opt/cni/bin/userspace
}
ports() { ovs-vsctl --format=csv --no-headings --columns=_uuid,name,ofport list Interface | grep net1 | sort; }
application() {
    setsid ip netns exec "$1" /srv/app/bin/python3 -I -m userspace_cni tap "${@:2}" >"/run/$1.tap" 2>&1 </dev/null &
}
"""
"""Functions for scripts in the machine."""
PING: Final = "ip netns exec left ping -q -c 1 -W 2 10.1.1.2"
EXCEPT: Final = (
    *("/var/log/", "/var/cache/", "/var/lib/apt/", "/var/lib/dpkg/", "/var/lib/systemd/", "/var/backups/", "/root/", "/srv/"),
    *("/etc/machine-id", "/etc/.pwd.lock", "/var/lib/dbus", "/var/tmp/", "/etc/openvswitch/", "/var/lib/libuuid"),
)
"""What the tools of packages, systemd and Open vSwitch themselves write, and what the test puts there."""


@pytest.fixture(scope="module")
def package() -> Path:
    return built_package.package()


def listing(machine: DebianMachine) -> set[str]:
    """Every path of its disk, but EXCEPT."""
    paths = machine.run("find / -xdev").splitlines()
    return {path for path in paths if not path.startswith(EXCEPT)}


def names_of_ours(machine: DebianMachine) -> list[str]:
    """What has our name beside the disk: in /run, among the units, mounts, tables of nftables and bridges."""
    everywhere = "find /run -name '*userspace*'; systemctl list-unit-files --no-legend 'userspace*'; findmnt --list | grep vhost"
    told = machine.run(f"{{ {everywhere}; nft list tables; ovs-vsctl list-br; }} || true")
    return told.splitlines()


@pytest.fixture
def machine(tmp_path: Path, package: Path) -> Iterator[DebianMachine]:
    """A machine that has the package as a file, with OVS-DPDK running."""
    with more_pages(512), DebianMachine(tmp_path / f"debian-{tmp_path.name}") as made:
        made.put(package, PACKAGE)
        made.run(SWITCH)
        yield made


def test_two_builds_give_the_same_bytes(package: Path, tmp_path: Path) -> None:
    """The same sources give the same package: no time, order, path or owner of the build is in it."""
    assert built_package.again(package, tmp_path).read_bytes() == package.read_bytes()


def test_it_is_installed_used_upgraded_and_removed(machine: DebianMachine, package: Path, tmp_path: Path) -> None:
    """Frames pass through restart and upgrade, a removal waits for the pods, and after a purge nothing is left."""
    before = listing(machine)
    said = machine.run(f"apt-get install -y {PACKAGE} 2>&1")
    assert "Setting up userspace-cni" in said
    assert machine.run("systemctl is-active userspace-cni; systemctl is-enabled userspace-cni").split() == ["active", "enabled"]
    machine.run("userspace-cni agent probe readyz && man -w userspace-cni-agent userspace-cni-settings")
    check_sample(PAGE, "userspace-cni status", machine.run("COLUMNS=104 userspace-cni status 2>&1"))
    compiled = "find /usr/lib/userspace-cni -name '*.pyc' | sort | sha256sum"
    known = machine.run(compiled)

    machine.run("cp -a /usr/lib/userspace-cni /srv/app; for pod in left right; do ip netns add $pod; done")
    machine.run(
        f"{CALLS} for pod in left right; do call ADD $pod; done; at=/usr/local/var/run/openvswitch;"
        "application left $at/left/left-net1 --name tap0 --address 10.1.1.1/24;"
        "application right $at/right/right-net1 --name tap0 --address 10.1.1.2/24;"
    )
    wait_until(lambda: machine.attempt(PING)[0] == 0, what="frames to pass from pod to pod")
    ports = machine.run(f"{CALLS} ports")
    assert len(ports.splitlines()) == 2
    machine.run("ip netns exec left setsid ping -i 0.02 -W 2 10.1.1.2 >/run/pings 2>&1 </dev/null & echo $! >/run/ping.pid")
    machine.run("systemctl restart userspace-cni && systemctl reload userspace-cni && userspace-cni agent probe readyz")

    machine.put(built_package.later(package, "0.1.1", tmp_path), LATER)
    machine.run(f"ip netns add third; {CALLS} call ADD third; dpkg --unpack {LATER}")
    refused, told = machine.attempt(f"{CALLS} call ADD fourth")
    assert refused == 1
    assert '"code":11' in told.replace(" ", ""), told  # try again later
    machine.run(f'{CALLS} call DEL third; test -n "$(ls /var/lib/cni/userspace/spool)"; dpkg --configure -a')
    wait_until(lambda: "third" not in machine.run("userspace-cni list --json"), what="the DEL from the upgrade to be done")
    assert machine.run("dpkg-query -W -f '${Version}' userspace-cni; systemctl is-active userspace-cni").split() == [
        "0.1.1active"
    ]
    machine.run(f"dpkg --install {LATER}")  # again
    machine.run("kill -INT $(cat /run/ping.pid); while kill -0 $(cat /run/ping.pid) 2>/dev/null; do sleep 0.1; done")
    answered = [int(number) for number in re.findall(r"icmp_seq=(\d+) ", machine.run("cat /run/pings"))]
    assert sorted(set(answered)) == list(range(1, max(answered) + 1))  # those behind the last one had no time to come back
    assert machine.run(f"{CALLS} ports") == ports

    code, told = machine.attempt("apt-get remove -y userspace-cni")
    assert code == 100
    assert "left/net1: attached to dpdk-net" in told
    assert "the package stays" in told
    check_sample(PAGE, "apt-get remove -y userspace-cni", told)
    machine.run("systemctl is-active userspace-cni && userspace-cni agent probe readyz")
    machine.run(PING)
    assert machine.run(f"{CALLS} ports") == ports

    machine.run("pkill -f 'userspace_cni tap'")
    machine.run(f"{CALLS} for pod in left right; do call DEL $pod; ip netns del $pod; done; ip netns del third")
    assert machine.run(compiled) == known
    machine.run("apt-get remove -y userspace-cni")
    assert (
        listing(machine) - before
        == {"/etc/userspace-cni", "/etc/userspace-cni/config.toml"}
        | {path for path in listing(machine) if path.startswith("/etc/systemd/")} - before
    )
    machine.run("apt-get purge -y userspace-cni")
    assert listing(machine) == before
    assert not names_of_ours(machine)


def test_an_agent_of_others_and_interruptions(tmp_path: Path, package: Path) -> None:
    """A node of another agent is refused, its plugin stays; a killed dpkg is finished; a switch is not needed."""
    lock = "/var/lib/cni/userspace/agent.lock"
    hold = f"flock {lock} sleep 600 >/dev/null 2>&1 </dev/null & until ! flock --nonblock {lock} true; do sleep 0.1; done"
    with DebianMachine(tmp_path / f"debian-{tmp_path.name}") as machine:
        machine.put(package, PACKAGE)
        machine.run("systemctl stop openvswitch-switch ovs-vswitchd ovsdb-server")
        before = listing(machine)
        machine.run(f"mkdir -p {lock.rpartition('/')[0]}; echo 'the agent, process 1' >{lock}; {hold}")
        code, told = machine.attempt(f"dpkg --install {PACKAGE}")
        assert code == 1
        assert "an agent that is not this package's serves this node: the agent, process 1" in told
        machine.run("pkill sleep; rm -r /var/lib/cni")

        cut = '/usr/bin/dpkg-deb "$@" | if [[ $* == *--fsys-tarfile* ]]; then head -c 9000000; kill -9 $PPID; else cat; fi'
        machine.run(f"printf '%s\\n' '#!/bin/bash' '{cut}' >/usr/local/bin/dpkg-deb; chmod 755 /usr/local/bin/dpkg-deb")
        assert machine.attempt(f"PATH=/usr/local/bin:$PATH dpkg --install {PACKAGE}")[0] in (
            137,
            -9,
        )  # bash runs the last command in its own place
        machine.run("rm /usr/local/bin/dpkg-deb; dpkg-query -W -f '${Status}' userspace-cni | grep half-installed")
        machine.run(f'dpkg --configure -a; dpkg --install {PACKAGE}; test -z "$(dpkg --verify userspace-cni)"')
        machine.reboot()
        machine.run("systemctl is-active userspace-cni; systemctl stop openvswitch-switch ovs-vswitchd ovsdb-server")

        machine.run(f"systemctl disable --now userspace-cni; {hold}; dpkg --remove userspace-cni; pkill sleep")
        machine.run(f"test -x /opt/cni/bin/userspace -a -e {lock}")

        machine.run(f"dpkg --install {PACKAGE} && dpkg --purge userspace-cni")
        assert listing(machine) == before
        # a directory that will be an image: nothing runs in it, and nothing is mounted
        machine.run("printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d")
        machine.run("mkdir /srv/image; mount --bind / /srv/image; mount -t tmpfs run /srv/image/run")
        machine.run(
            f"chroot /srv/image bash -c 'dpkg --install {PACKAGE} && userspace-cni --version && dpkg --purge userspace-cni'"
        )

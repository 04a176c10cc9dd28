"""The guest of the tests' virtual machines: Debian's cloud kernel and an initramfs of busybox, virtio modules and one script.

It needs no disk and is usable some seconds after power-on without KVM. Both files are made once per machine, of packages that are
downloaded and unpacked but not installed, and kept in CACHE; `python -m tests.lab.guests.guest` makes them and prints where
they are.

What the guest does is told on the kernel's command line, which `command_line` makes; words in any order:

    guest.nic=MAC,ADDRESS/LENGTH[,MTU]   the interface with this MAC gets an IPv4 address and comes up; without MTU: the device's
    guest.ping=ADDRESS[,SIZE]            an echo request every guest.every ms, and with SIZE one of SIZE bytes after each of them
    guest.every=MILLISECONDS             default 200

and what it has to tell comes on the serial line, whose input it reads: a line is run by `sh -c` (`poweroff -f` ends it).

    GUEST up mac=… name=eth0 address=…/24 mtu=1500 queues=1 carrier=1 pci=0000:00:02.0      for each guest.nic
    GUEST missing mac=…                              no interface has it
    GUEST ready                                      everything was done, pings begin
    PING seq=1 ok peer=ADDRESS                       or `lost`, when there is no answer in a second
    PING-BIG seq=1 ok size=8000 peer=ADDRESS         the same for SIZE

It goes on until it is powered off. A panic ends the machine where QEMU runs with -no-reboot.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.lab.guests import kernel_parts
from tests.lab.guests.kernel_parts import Cpio, kernel_of, unpack, with_needed

CACHE = Path("/var/cache/userspace-cni")
MEMORY_MIB = 128

_METAPACKAGE = "linux-image-cloud-amd64"
_MODULES = ("virtio_pci", "virtio_net")
_APPLETS = ("cat", "grep", "insmod", "ip", "ls", "mount", "ping", "poweroff", "readlink", "sh", "usleep")
_KERNEL, _INITRAMFS = "vmlinuz", "initramfs"
_QUICK = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off no_timer_check random.trust_cpu=on ipv6.disable=1"
"""IPv6 is off, so that a guest sends only what it was asked to."""

_INIT = r"""#!/bin/sh
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev
while read -r module; do insmod "$module"; done </modules/order

# name_of MAC: sets name to the interface that has it
name_of() {
    for name in $(ls /sys/class/net); do
        [ "$(cat "/sys/class/net/$name/address")" = "$1" ] && return
    done
    name=
}

# nic MAC ADDRESS/LENGTH [MTU]
nic() {
    name_of "$1"
    [ -n "$name" ] || { echo "GUEST missing mac=$1"; return; }
    dir=/sys/class/net/$name
    [ -z "$3" ] || ip link set "$name" mtu "$3"
    ip address add "$2" dev "$name"
    ip link set "$name" up
    pci=$(readlink -f "$dir/device/..")
    told="mtu=$(cat "$dir/mtu") queues=$(ls "$dir/queues" | grep -c rx) carrier=$(cat "$dir/carrier") pci=${pci##*/}"
    echo "GUEST up mac=$1 name=$name address=$2 $told"
}

# answered ARGUMENT...: sets state
answered() {
    ping -q -c 1 -W 1 "$@" >/dev/null 2>&1 && state=ok || state=lost
}

# pings ADDRESS [SIZE]
pings() {
    seq=0
    while true; do
        seq=$((seq + 1))
        answered "$1"
        echo "PING seq=$seq $state peer=$1"
        [ -z "$2" ] || { answered -s "$2" "$1"; echo "PING-BIG seq=$seq $state size=$2 peer=$1"; }
        usleep $((every * 1000))
    done
}

every=200
peers=
for word in $(cat /proc/cmdline); do
    values=$(IFS=,; echo ${word#*=})
    case $word in
    guest.nic=*) nic $values ;;
    guest.ping=*) peers="$peers ${word#*=}" ;;
    guest.every=*) every=$values ;;
    esac
done
echo "GUEST ready"
for peer in $peers; do
    pings $(IFS=,; echo $peer) &
done
while true; do
    read -r line && sh -c "$line" || usleep 100000
done
"""


@dataclass(frozen=True)
class Nic:
    """An interface of the guest: its address with length (10.9.0.2/24), and an MTU other than the device's."""

    mac: str
    address: str
    mtu: int = 0


def command_line(*nics: Nic, ping: tuple[str, ...] = (), big: int = 0, every_ms: int = 200) -> str:
    """The kernel's command line for a guest with these interfaces that pings these addresses; `big`: bytes of further pings."""
    words = [_QUICK, f"guest.every={every_ms}"]
    words += [f"guest.nic={nic.mac},{nic.address}" + (f",{nic.mtu}" if nic.mtu else "") for nic in nics]
    words += [f"guest.ping={peer}" + (f",{big}" if big else "") for peer in ping]
    return " ".join(words)


def kernel() -> Path:
    return _made() / _KERNEL


def initramfs() -> Path:
    return _made() / _INITRAMFS


@cache
def _made() -> Path:
    """The directory with kernel and initramfs; RuntimeError says which command failed."""
    recipe = hashlib.sha256(Path(__file__).read_bytes() + Path(kernel_parts.__file__).read_bytes()).hexdigest()[:12]
    with _locked():
        if found := sorted(CACHE.glob(f"guest-*-{recipe}")):
            return found[-1]
        with tempfile.TemporaryDirectory(prefix="guest.", dir=CACHE) as directory:
            root, made = Path(directory) / "root", Path(directory) / "made"
            version = _unpacked(Path(directory), root)
            made.mkdir(mode=0o755)
            shutil.copyfile(root / f"boot/vmlinuz-{version}", made / _KERNEL)
            (made / _INITRAMFS).write_bytes(gzip.compress(_archive(root, root / f"lib/modules/{version}"), mtime=0))
            Path(directory).chmod(0o755)
            return made.rename(CACHE / f"guest-{version}-{recipe}")


@contextmanager
def _locked() -> Iterator[None]:
    """Hold the lock under which one process at a time makes the guest."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "guest.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _unpacked(directory: Path, root: Path) -> str:
    """Download kernel and busybox to `directory` and unpack them to `root`; the kernel's version."""
    version = kernel_of(_METAPACKAGE, directory)
    unpack((f"linux-image-{version}", "busybox-static"), directory, root)
    return version


def _archive(root: Path, modules: Path) -> bytes:
    archive = Cpio()
    for directory in ("bin", "dev", "modules", "proc", "sys"):
        archive.add(directory, stat.S_IFDIR | 0o755)
    archive.add("init", stat.S_IFREG | 0o755, _INIT.encode())
    archive.add("bin/busybox", stat.S_IFREG | 0o755, (root / "bin/busybox").read_bytes())
    for applet in _APPLETS:
        archive.add(f"bin/{applet}", stat.S_IFLNK | 0o777, b"busybox")
    order = with_needed(modules, _MODULES)
    for name, content in order.items():
        archive.add(f"modules/{name}.ko", stat.S_IFREG | 0o644, content)
    archive.add("modules/order", stat.S_IFREG | 0o644, "".join(f"/modules/{name}.ko\n" for name in order).encode())
    return archive.finish()


if __name__ == "__main__":
    os.umask(0o022)
    print(kernel(), initramfs(), sep="\n")

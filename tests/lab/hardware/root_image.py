"""The images from which the guest with a full kernel boots: Debian's kernel, and a root of this machine's own programs.

The programs are those that the tests use here (OVS-DPDK, Python with what the project needs, iproute2, nft), copied with the
libraries that they name. Kernel, modules and busybox are Debian's, unpacked and not installed. `root_image` makes them once and
keeps them.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from tests.lab.guests import kernel_parts
from tests.lab.guests.kernel_parts import Cpio, kernel_of, run, unpack, with_needed
from tests.lab.guests.roots import kept
from tests.lab.hardware import in_guest

KERNEL: Final = "vmlinux"
INITRAMFS: Final = "initramfs"
ROOT: Final = "root.erofs"
LIBRARIES: Final = "/usr/lib/x86_64-linux-gnu"
DEPENDENCIES: Final = "/usr/lib/userspace-cni"
"""Where the guest has the Python packages that the project needs."""
SERVER: Final = "/usr/lib/in_guest.py"
"""Where the guest has the program that runs commands for tests."""
_METAPACKAGE: Final = "linux-image-amd64"
_FIRST: Final = ("virtio_pci", "virtio_blk", "crc32c_generic", "erofs", "overlay")
"""Modules by which the root is mounted."""
_MODULES: Final = (
    "8021q", "bonding", "bridge", "dummy", "e1000", "e1000e", "geneve", "igb", "nf_conntrack", "nf_nat", "nft_chain_nat",
    "nft_ct", "nft_fwd_netdev", "nft_masq", "nf_tables", "nf_dup_netdev", "nft_reject_inet", "openvswitch", "sch_htb",
    "sch_ingress", "sch_netem", "sch_tbf", "tun", "veth", "vfio_iommu_type1", "vfio_pci", "virtio_console", "virtio_net",
    "vport_geneve", "vport_vxlan", "vxlan", "cls_u32", "act_mirred", "cls_basic", "act_police", "af_packet", "vmxnet3",
    "xt_MASQUERADE",
)  # fmt: skip
_PYTHON: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
_VSWITCHD: Final = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
_PROGRAMS: Final = (
    _VSWITCHD,
    *(f"/usr/bin/{each}" for each in ("ovs-appctl", "ovs-ofctl", "ovs-vsctl", "ovsdb-client", "ovsdb-tool", _PYTHON)),
    *(f"/usr/sbin/{each}" for each in ("ethtool", "nft", "ovsdb-server")),
    *(
        f"/usr/bin/{each}"
        for each in ("bash", "dash", "dbus-daemon", "kmod", "mount", "nsenter", "ping", "tcpdump", "udevadm", "umount", "unshare")
    ),
    *(f"/sbin/{each}" for each in ("ip", "tc")),
    *(f"/usr/lib/cni/{each}" for each in ("host-local", "static")),
)
_DRIVERS: Final = ("bus_*", "mempool_ring", "net_af_packet", "net_e1000", "net_null")
"""Drivers of DPDK; its start fails when a library of one is missing. Open vSwitch 4.0 does not start without one of each bus."""
_KMOD: Final = ("depmod", "insmod", "lsmod", "modinfo", "modprobe", "rmmod")
_DATA: Final = (
    *("/usr/share/openvswitch", "/etc/protocols", "/etc/services", "/etc/nsswitch.conf", "/usr/share/dbus-1/system.conf"),
    *(f"/usr/lib/udev/rules.d/{each}.rules" for each in ("50-udev-default", "75-net-description")),
)
_NETWORK_MANAGER: Final = (
    *("network-manager", "libnm0", "libndp0", "libteamdctl0", "libmm-glib0", "libnewt0.52", "libbluetooth3"),
)
"""NetworkManager, unpacked because it must not run on a machine that runs tests.

The dbus and udev that it needs are the machine's.
"""
_DRIVERCTL: Final = "usr/sbin/driverctl"
"""The package is unpacked, because on a machine with udev it would bind devices at each start."""
POLICY: Final = "/usr/share/selinux-policy"
"""Where the guest has the SELinux policy of tests, compiled."""
_POLICY_SOURCE: Final = Path(__file__).with_name("selinux.cil")
_PARTS_OF_IT: Final = (
    "usr/sbin/NetworkManager", "usr/bin/nmcli", "usr/lib/NetworkManager", "usr/share/dbus-1/system.d",
    f"{LIBRARIES[1:]}/NetworkManager", "lib/udev/rules.d/85-nm-unmanaged.rules", "etc/NetworkManager",
)  # fmt: skip
_INTERP: Final = 3
_LOADER: Final = "/lib64/ld-linux-x86-64.so.2"
_NOT_OF_PYTHON: Final = ("test", "idlelib", "ensurepip", "tkinter", "lib2to3", "pydoc_data", "distutils")
_OWN: Final = "userspace-cni"


def root_image() -> Path:
    """The directory with KERNEL, INITRAMFS and ROOT, made now if there is none of these versions. Needs root."""
    return kept("full-guest-root", _recipe(), _make, former=1)


@cache
def _recipe() -> tuple[object, ...]:
    """All that the images depend on: how they are made, and which files of this machine they copy."""
    made_by = tuple(Path(each).read_bytes() for each in (__file__, kernel_parts.__file__, str(in_guest.__file__), _POLICY_SOURCE))
    programs = tuple((each, Path(each).stat().st_mtime_ns, Path(each).stat().st_size) for each in _PROGRAMS)
    return (made_by, programs, tuple((each.name, each.version) for each in _distributions()))


def _make(part: Path) -> None:
    """Fetch and copy everything, and put it into images."""
    packages, debian, tree = part / "packages", part / "debian", part / "tree"
    for each in (packages, debian, tree):
        each.mkdir()
    version = kernel_of(_METAPACKAGE, packages)
    unpack(
        (f"linux-image-{version}", "busybox-static", "erofs-utils", "driverctl", "secilc", *_NETWORK_MANAGER), packages, debian
    )
    (part / KERNEL).write_bytes(_uncompressed((debian / f"boot/vmlinuz-{version}").read_bytes()))
    modules = debian / f"lib/modules/{version}"
    (part / INITRAMFS).write_bytes(gzip.compress(_initramfs(debian / "bin/busybox", modules), mtime=0))
    _fill(tree, debian, modules)
    compiled = ("--policyvers", "33", "--output", f"{tree}{POLICY}", "--filecontext", "/dev/null")
    run(str(debian / "usr/bin/secilc"), *compiled, str(_POLICY_SOURCE), cwd=tree)
    make_image(tree, part / ROOT, debian / "usr/bin/mkfs.erofs")
    shutil.copy2(debian / "usr/bin/mkfs.erofs", part)
    for each in (packages, debian, tree):
        shutil.rmtree(each)


def make_image(tree: Path, image: Path, program: Path) -> None:
    """A read-only file system of a directory, with the files' times, by which Python accepts compiled modules."""
    run(str(program), "--quiet", "--all-root", "-Eforce-inode-extended", str(image), str(tree), cwd=tree)


# -- the root ----------------------------------------------------------------------------------------------------------------


def _fill(tree: Path, debian: Path, modules: Path) -> None:
    for each in ("dev", "etc", "home", "mnt", "product", "proc", "root", "run", "sys", "tmp", "usr/bin", "usr/sbin", "var/lib"):
        (tree / each).mkdir(parents=True)
    for each in ("bin", "sbin", "lib", "lib64"):
        (tree / "usr" / each).mkdir(exist_ok=True)
        (tree / each).symlink_to(f"usr/{each}")
    (tree / "var/run").symlink_to("/run")
    wanted = [*_PROGRAMS, *_added_network_manager(tree, debian)]
    python = Path("/usr/lib", _PYTHON)
    left_out = shutil.ignore_patterns(*_NOT_OF_PYTHON)
    shutil.copytree(python, tree / "usr/lib" / _PYTHON, ignore=left_out, ignore_dangling_symlinks=True)
    wanted += map(str, (python / "lib-dynload").glob("*.so"))
    for package in _distributions():
        wanted += _copied(package, tree / DEPENDENCIES[1:])
    copied: dict[tuple[int, int], Path] = {}
    for each in sorted({*wanted, *_needed(wanted), *_drivers()}):
        if not Path(each).is_relative_to(sys.prefix):  # the packages' own parts were copied already
            _copy(Path(each), tree, copied)
    for each in _DATA:
        _place(Path(each), tree / each[1:])
    _place(debian / _DRIVERCTL, tree / _DRIVERCTL)
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nmessagebus:x:100:65534::/:/bin/false\n")
    (tree / "etc/group").write_text("root:x:0:\nhugetlbfs:x:33:\n")
    (tree / "usr/bin/python3").symlink_to(_PYTHON)
    (tree / "usr/bin/sh").symlink_to("dash")  # busybox's own prefers its applets to programs of the same names, as ip(8)
    (tree / "usr/sbin/ovs-vswitchd").symlink_to(
        "../lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
    )  # Debian's name of what is in use
    for each in _KMOD:
        (tree / "usr/sbin" / each).symlink_to("../bin/kmod")
    shutil.copy2(debian / "bin/busybox", tree / "usr/bin/busybox")
    for applet in run(str(debian / "bin/busybox"), "--list", cwd=tree).split():
        if not any((tree / "usr" / place / applet).exists() for place in ("bin", "sbin")):
            (tree / "usr/bin" / applet).symlink_to("busybox")
    _add_modules(tree, modules)
    shutil.copy2(str(in_guest.__file__), tree / SERVER[1:])
    run("ldconfig", "-r", str(tree), cwd=tree)


def _added_network_manager(tree: Path, debian: Path) -> list[str]:
    """Put NetworkManager into its place; the files of this machine that it loads."""
    for each in _PARTS_OF_IT:
        _place(debian / each, tree / (f"usr/{each}" if each.startswith("lib/") else each))
    libraries = debian / LIBRARIES[1:]
    for path in libraries.glob("lib*.so*"):
        _place(path, tree / LIBRARIES[1:] / path.name)
    needed = _needed([str(debian / each) for each in _PARTS_OF_IT[:2]], str(libraries))
    return [each for each in needed if not Path(each).is_relative_to(debian)]


def _place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def _add_modules(tree: Path, modules: Path) -> None:
    """The modules, so that modprobe(8) finds each by its name and its aliases."""
    place = tree / "usr/lib/modules" / modules.name
    place.mkdir(parents=True)
    for name, content in with_needed(modules, (*_FIRST, *_MODULES)).items():
        (place / f"{name}.ko").write_bytes(content)
    for path in modules.glob("modules.builtin*"):
        shutil.copy2(path, place)
    run("depmod", "-b", str(tree), modules.name, cwd=tree)


def _drivers() -> list[str]:
    """The drivers of the DPDK that ovs-vswitchd loads, and their libraries: a lane's where this runs with its programs."""
    [eal] = (Path(each) for each in _needed([_VSWITCHD]) if "/librte_eal.so." in each)
    version = eal.suffix[1:]
    directory = Path(LIBRARIES, "dpdk", f"pmds-{version}.0")
    drivers = [str(each) for name in _DRIVERS for each in directory.glob(f"librte_{name}.so.{version}.0")]
    return [*drivers, *_needed(drivers, str(eal.parent), _loader_of(_VSWITCHD))]


def _copy(place: Path, tree: Path, copied: dict[tuple[int, int], Path]) -> None:
    """Copy the file into its place, or make it a link to a copy of the same file: a driver of DPDK must not be loaded twice.

    A library gets the name by which programs look for it. Debian's /lib is a link to /usr/lib.
    """
    target = tree / str(place.parent.resolve())[1:] / place.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        return
    facts = place.stat()
    there = copied.setdefault((facts.st_dev, facts.st_ino), target)
    if there == target:
        shutil.copy2(place, target)
    else:
        target.symlink_to(f"/{there.relative_to(tree)}")


def _needed(files: Iterable[str], libraries: str = "", loader: str = _LOADER) -> set[str]:
    """The libraries that these programs and libraries load, and their loaders: a program's own, and for a library `loader`.

    `libraries` come first.
    """
    environment = os.environ | {"LD_LIBRARY_PATH": libraries, "LD_TRACE_LOADED_OBJECTS": "1"}
    told = "".join(
        subprocess.run([_loader_of(each) or loader, each], capture_output=True, text=True, check=False, env=environment).stdout
        for each in files
    )
    if lacking := sorted({*re.findall(r"(\S+) => not found", told)}):
        raise RuntimeError(
            f"{', '.join(lacking)}: not on this machine, and programs of the guest need them; see deploy/prepare.sh guest"
        )
    return set(re.findall(r"(?:=> )?(/\S+) \(0x", told))


def _loader_of(path: str) -> str:
    """The dynamic loader that a program names (elf(5), PT_INTERP), "" for a library."""
    content = Path(path).read_bytes()
    offset, size, count = *struct.unpack_from("<Q", content, 32), *struct.unpack_from("<HH", content, 54)
    for number in range(count):
        kind, _, at, _, _, length = struct.unpack_from("<IIQQQQ", content, offset + number * size)
        if kind == _INTERP:
            return content[at : at + length].rstrip(b"\0").decode()
    return ""


def _distributions() -> list[metadata.Distribution]:
    """The Python packages that the project needs, without itself and its tools, by name."""
    found: dict[str, metadata.Distribution] = {}
    names = [_OWN]
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of another Python or system
            continue
        required = (each for each in found[name].requires or () if "extra" not in each)
        names += [match[0] for each in required if (match := re.match(r"[A-Za-z0-9_.\-]+", each))]
    return [each for name, each in sorted(found.items()) if name != _OWN]


def _copied(distribution: metadata.Distribution, place: Path) -> Iterator[str]:
    """Copy the package below the directory; the result is its compiled parts."""
    for file in distribution.files or ():
        source = Path(str(distribution.locate_file(file))).resolve()
        if file.parts[0] == ".." or not source.exists():
            continue
        target = place / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        if ".so" in source.suffixes:
            yield str(source)


# -- kernel and initramfs ----------------------------------------------------------------------------------------------------


def _uncompressed(bz_image: bytes) -> bytes:
    """The kernel from a bzImage (the kernel's Documentation/x86/boot.rst): QEMU starts it so in half of the time."""
    sectors = bz_image[0x1F1]
    offset, length = struct.unpack_from("<II", bz_image, 0x248)
    kernel = lzma.LZMADecompressor().decompress(bz_image[(sectors + 1) * 512 + offset :][:length])
    if not kernel.startswith(b"\x7fELF"):
        raise RuntimeError("the kernel's image has no ELF file in it that is compressed by xz")
    return kernel


def _initramfs(busybox: Path, modules: Path) -> bytes:
    archive = Cpio()
    for directory in ("bin", "dev", "lower", "modules", "new", "proc", "upper"):
        archive.add(directory, stat.S_IFDIR | 0o755)
    archive.add("init", stat.S_IFREG | 0o755, _INIT.encode())
    archive.add("bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes())
    for applet in ("insmod", "mkdir", "mount", "sh", "switch_root"):
        archive.add(f"bin/{applet}", stat.S_IFLNK | 0o777, b"busybox")
    order = with_needed(modules, _FIRST)
    for name, content in order.items():
        archive.add(f"modules/{name}.ko", stat.S_IFREG | 0o644, content)
    archive.add("modules/order", stat.S_IFREG | 0o644, "".join(f"/modules/{name}.ko\n" for name in order).encode())
    return archive.finish()


_INIT: Final = f"""#!/bin/sh
mount -t devtmpfs dev /dev
while read -r module; do insmod "$module"; done </modules/order
mount -t erofs -o ro /dev/vda /lower && mount -t tmpfs -o mode=755 upper /upper && mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work root /new
mount -t erofs -o ro /dev/vdb /new/product
mount -t devtmpfs dev /new/dev && mount -t proc proc /new/proc && mount -t sysfs sys /new/sys
mount -t tmpfs -o mode=755 run /new/run && mkdir -p /new/dev/shm /new/dev/pts /new/run/lock
mount -t tmpfs shm /new/dev/shm
exec switch_root /new /usr/bin/env PATH=/usr/sbin:/usr/bin PYTHONPATH=/product:{DEPENDENCIES} HOME=/root \\
    /usr/bin/python3 {SERVER}
"""


if __name__ == "__main__":
    sys.stdout.write(f"{root_image()}\n")

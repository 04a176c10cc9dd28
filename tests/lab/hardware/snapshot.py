"""The saved guest that each test restores: OVS-DPDK with its NICs at vfio-pci, the project installed, and its agent running.

`python -m tests.lab.hardware.snapshot` makes it once for each state of the sources, and keeps it. So nothing that a test does in
it has to be undone.
"""

from __future__ import annotations

import compileall
import hashlib
import py_compile
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from tests.lab.guests.roots import kept, print_made
from tests.lab.hardware import full_guest
from tests.lab.hardware.full_guest import NICS, FullGuest, PciNic
from tests.lab.hardware.root_image import make_image, root_image

SETTINGS: Final = "/etc/userspace-cni.toml"
SETTINGS_TEXT: Final = "tick_s = 600\n"
"""The agent's pause between passes: so what it notices while a test waits comes from a notice and not from a pass."""
AGENT_LOG: Final = "/var/log/agent.log"
PRODUCT: Final = "product.erofs"
SAVED: Final = "saved"
_TREE: Final = Path(__file__).resolve().parents[3]
_PACKAGES: Final = ("kubevirt", "localdb", "userspace_cni")
_PAGES: Final = 320
"""Huge pages of 2 MiB of each NUMA node."""

_PREPARED: Final = f"""
echo 'devpts /dev/pts' >/etc/fstab; mount -t devpts devpts /dev/pts
mkdir -p /var/log /var/lib/cni /etc/openvswitch /run/openvswitch /run/netns /dev/hugepages /opt/cni/bin /var/lib/openvswitch
hostname guest; ip link set lo up
modprobe -a tun veth bridge 8021q openvswitch vfio-pci e1000e igb virtio_net nf_tables nft_chain_nat nft_ct nft_masq af_packet
modprobe bonding max_bonds=0
for node in 0 1; do echo {_PAGES} >/sys/devices/system/node/node$node/hugepages/hugepages-2048kB/nr_hugepages; done
mount -t hugetlbfs hugetlbfs /dev/hugepages
ip netns add outside
"""
START_SWITCH: Final = "ovs-vswitchd unix:/run/openvswitch/db.sock --log-file=/var/log/vswitchd.log --detach --no-chdir --pidfile"
_SWITCH: Final = f"""
ovsdb-tool create /etc/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server /etc/openvswitch/conf.db --log-file=/var/log/ovsdb.log \\
    --remote=punix:/run/openvswitch/db.sock --detach --no-chdir --pidfile
ovs-vsctl --no-wait init -- set Open_vSwitch . other_config:dpdk-init=true other_config:dpdk-socket-mem=256,256 \\
    other_config:pmd-cpu-mask=0x3 other_config:dpdk-lcore-mask=0x1 other_config:per-port-memory=true \\
    other_config:pmd-maxsleep=1000 other_config:pmd-sleep-max=1000 external_ids:system-id=guest
{START_SWITCH}
ovs-vsctl --timeout=60 get Open_vSwitch . dpdk_initialized
"""
_PROJECT: Final = f"""
printf '{SETTINGS_TEXT}' >{SETTINGS}
export USERSPACE_CNI_CONFIG={SETTINGS}
python3 -m userspace_cni install --bin-dir /opt/cni/bin
setsid python3 -m userspace_cni agent >{AGENT_LOG} 2>&1 </dev/null &
"""


def saved_guest() -> Path:
    """The directory with SAVED and PRODUCT, made now if there is none of these sources. Needs root."""
    images = root_image()
    made_by = tuple(Path(each).read_bytes() for each in (__file__, full_guest.__file__))
    return kept("full-guest-saved", (images.name, made_by, _sources()), _make, former=1)


@contextmanager
def restored() -> Iterator[FullGuest]:
    """A guest that continues from the saved one; nothing of it is left afterwards."""
    made = saved_guest()
    with _started(made / PRODUCT, saved=True) as guest:
        yield guest.restore(made / SAVED)


@contextmanager
def _started(product: Path, *, saved: bool) -> Iterator[FullGuest]:
    with (
        tempfile.TemporaryDirectory(prefix="full-guest-") as directory,
        FullGuest(Path(directory), root_image(), product, saved=saved) as guest,
    ):
        yield guest


@cache
def _sources() -> str:
    """A digest of the project's sources."""
    told = hashlib.sha256()
    for path in _files():
        told.update(f"{path.relative_to(_TREE)}\0".encode() + path.read_bytes() + b"\0")
    return told.hexdigest()


def _files() -> list[Path]:
    """The files of the project that the guest gets, with built ones."""
    found = (path for package in _PACKAGES for path in (_TREE / package).rglob("*"))
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def _make(part: Path) -> None:
    make_product(part)
    with _started(part / PRODUCT, saved=False) as guest:
        prepare(guest.boot())
        guest.save(part / SAVED)


def make_product(part: Path) -> None:
    """Write the image PRODUCT, the compiled project, to the directory."""
    tree = part / "product"
    for path in _files():
        target = tree / path.relative_to(_TREE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    compileall.compile_dir(tree, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, stripdir=str(tree))
    make_image(tree, part / PRODUCT, root_image() / "mkfs.erofs")
    shutil.rmtree(tree)


def prepare(guest: FullGuest) -> None:
    """Bring a guest that has just booted to the state that is saved.

    The agent has had an uplink by then, because the imports for one take emulated processors several seconds.
    """
    guest.shell(_PREPARED)
    guest.shell("\n".join(_named(nic) for nic in NICS))
    guest.shell(_SWITCH)
    guest.shell(_PROJECT)
    guest.until(lambda: guest.run("test", "-S", "/run/userspace-cni/agent.sock").code == 0, "the agent to listen")
    warm = SETTINGS_TEXT + '[[provider_network]]\nname = "warm"\ninterface = "k0"\n'
    _looks(guest, warm, '"ready": true')
    _looks(guest, SETTINGS_TEXT, '"specs": []')


def _looks(guest: FullGuest, settings: str, told: str) -> None:
    guest.do("tee", SETTINGS, stdin=settings)
    guest.until(lambda: told in guest.page("/api/v1/network", "POST"), f"the agent to say {told}")


def _named(nic: PciNic) -> str:
    """Move the peer to the namespace `outside`.

    Give the NIC its name, or bind it to vfio-pci and write its address to /run/NAME.
    """
    return f"""
for each in /sys/class/net/*; do
    [ -e $each/device ] || continue
    case $(cat $each/address) in
    {nic.peer_mac}) ip link set ${{each##*/}} name o-{nic.name} netns outside; ip -n outside link set o-{nic.name} up ;;
    {nic.mac}) at=$(readlink -f $each/device); basename $at >/run/{nic.name}; ip link set ${{each##*/}} name {nic.name} ;;
    esac
done
{_POLLED.format(name=nic.name) if nic.polled else ""}
"""


_POLLED: Final = """
at=$(cat /run/{name})
echo vfio-pci >/sys/bus/pci/devices/$at/driver_override
echo $at >/sys/bus/pci/devices/$at/driver/unbind
echo $at >/sys/bus/pci/drivers_probe
"""


if __name__ == "__main__":
    print_made("the guest with a full kernel", saved_guest)

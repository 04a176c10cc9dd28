"""This machine as it was before anything of this project or of CNI was on it, for a script of a test: Debian with its packages.

The usual directories are the machine's with a layer of the test's own over them. The lock on hugepages stays the machine's.
Mounts, processes, network namespaces and the host's name are the test's own, and end with its shell.
"""

from __future__ import annotations

from typing import Final

from tests.lab.node.node import PLUGINS
from tests.lab.pages import ROOT

ENTER: Final = [
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "--net",
    "--uts",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
]
"""What enters the namespaces: the shell behind it is their first process."""

MACHINE: Final = f"""
touch /run/private-switch.lock lock && mount --bind /run/private-switch.lock lock
mkdir layers && mount -t tmpfs layers layers
for place in /etc /opt /run /usr/local /var/lib /var/log; do
    mkdir -p layers$place layers/.work$place
    mount -t overlay -o lowerdir=$place,upperdir=layers$place,workdir=layers/.work$place overlay $place
done
mount --bind lock /run/private-switch.lock
rm -rf /etc/userspace-cni /etc/cni /run/userspace-cni /run/netns /var/lib/cni /var/lib/vhost_sockets /opt/cni
mkdir -p /etc/cni/net.d /opt/cni/bin /opt/userspace-cni
ln -s {PLUGINS}/* /opt/cni/bin/
mount --bind {ROOT}/.venv /opt/userspace-cni
echo node-1 > /proc/sys/kernel/hostname
mkdir clone && ln -s {ROOT}/deploy clone/deploy && cd clone
"""
"""What a script begins with, in a directory of the test's own."""

NEVER_STARTED: Final = """
export PATH=/opt/userspace-cni/bin:$PATH
PRIVATE_SWITCH_APP_PAGES=512 deploy/private-switch start $(mktemp -d)
touch pages && mount --bind pages /proc/sys/vm/nr_hugepages
rm -rf /run/openvswitch /etc/openvswitch/conf.db
"""
"""A Debian whose Open vSwitch was never started. The number of hugepages stays the machine's: those that a script reserves by
sysctl(8) are what a switch beside it leaves to applications.
"""

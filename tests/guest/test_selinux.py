"""SELinux in enforcing mode: who may use a vhost-user socket by `host.vhost.selinuxLabel`, and labels that are refused."""

from __future__ import annotations

import errno
import json
from typing import Any

from tests.lab.hardware.full_guest import FullGuest
from tests.lab.hardware.guest_node import GuestNode
from tests.lab.hardware.root_image import POLICY

DIRECTORY = "/usr/local/var/run/openvswitch/pod"
LABEL = "system_u:object_r:container_file_t:s0:{}"
DOMAIN = "system_u:system_r:container_t:s0:{}"
_ENFORCED = f"""
mount -t selinuxfs selinuxfs /sys/fs/selinux
dd if={POLICY} of=/sys/fs/selinux/load bs=1M
echo 1 >/sys/fs/selinux/enforce
"""


def vhost_network(mode: str, label: str) -> dict[str, Any]:
    """A network of vhost-user sockets with this label; `mode`: the part of OVS."""
    host = {"bridge": {"bridgeName": "br0"}, "vhost": {"mode": mode, "selinuxLabel": label, "socketfile": "sock"}}
    return {"cniVersion": "1.0.0", "name": "net", "type": "userspace", "host": host}


def tried(guest: FullGuest, method: str, path: str, *categories: str) -> list[int]:
    """For each of these categories, as which error a process in the domain of containers with them failed to call the method of a
    Unix socket with the path; 0 where it did not."""
    domains = [DOMAIN.format(each) for each in categories]
    return list(json.loads(guest.do("python3", "-S", "-c", _TRIED, method, path, *domains)))


_TRIED = """
import json, os, socket, sys
method, path, *domains = sys.argv[1:]
def tried(domain):
    with open("/proc/self/attr/current", "w") as current:
        current.write(domain)
    try:
        getattr(socket.socket(socket.AF_UNIX), method)(path)
    except OSError as error:
        return error.errno
    return 0
found = []
for domain in domains:
    child = os.fork()
    if not child:
        os._exit(tried(domain))
    found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(found))
"""


def labels(guest: FullGuest, *paths: str) -> list[str]:
    """The SELinux labels of these files, as the kernel has them."""
    return list(json.loads(guest.do("python3", "-S", "-c", _LABELS, *paths)))


_LABELS = """
import json, os, sys
print(json.dumps([os.getxattr(path, "security.selinux").rstrip(b"\\0").decode() for path in sys.argv[1:]]))
"""


def test_the_label_says_who_connects(guest: FullGuest, node: GuestNode) -> None:
    """Directory and socket have it; a process with the label's categories connects to a socket of OVS, another is refused.

    CHECK knows the label by the words in which the kernel has it, and DEL leaves nothing.
    """
    guest.shell(_ENFORCED)
    network = vhost_network("server", LABEL.format("c2,c1"))
    result = node.add("pod", network)
    assert labels(guest, DIRECTORY, f"{DIRECTORY}/sock") == [LABEL.format("c1,c2")] * 2
    assert tried(guest, "connect", f"{DIRECTORY}/sock", "c1,c2", "c1,c3") == [0, errno.EACCES]
    assert node.ask("CHECK", "pod", network | {"prevResult": result}) == {}
    node.delete("pod", network)
    assert guest.do("ovs-vsctl", "list-br") == ""


def test_the_label_says_who_makes_the_socket(guest: FullGuest, node: GuestNode) -> None:
    """Where OVS connects, a process with the label's categories makes the socket in the directory, and another is refused."""
    guest.shell(_ENFORCED)
    network = vhost_network("client", LABEL.format("c1,c2"))
    node.add("pod", network)
    assert tried(guest, "bind", f"{DIRECTORY}/sock", "c1,c3", "c1,c2") == [errno.EACCES, 0]
    node.delete("pod", network)


def test_a_label_that_the_policy_has_not(guest: FullGuest, node: GuestNode) -> None:
    """ADD is refused with the label and the kernel's word, and leaves nothing."""
    guest.shell(_ENFORCED)
    guest.do("ip", "netns", "add", "pod")
    answer = node.ask("ADD", "pod", vhost_network("client", LABEL.format("c9")))
    assert "setting SELinux label 'system_u:object_r:container_file_t:s0:c9': Invalid argument" in answer["msg"], answer
    assert guest.do("ovs-vsctl", "list-br") == ""

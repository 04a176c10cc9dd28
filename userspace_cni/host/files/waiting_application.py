"""Whether an application waits at its socket for a switch that is not connected.

The kernel's lists of sockets tell; it connects to nothing, because a vhost-user application would take the connection for the
switch. The file decides, whatever name the application gave it.
"""

from __future__ import annotations

import os
import stat

from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink.netns import OWN, open_netns, open_switch_netns
from userspace_cni.linux.unix_sockets import file_of, unix_sockets


def find_waiting_socket(path: str, netns: str, switch_netns: str, root: HostRoot = HERE) -> int:
    """The inode of the socket at `path` at which a process of the namespace at `netns` listens, and to which no program is
    connected; 0 where it is not so, or cannot be seen.

    `switch_netns`: the namespace of ovs-vswitchd, "" for this process's own. Connections that wait to be accepted count, too.
    """
    directory, _, name = path.rpartition("/")
    try:
        facts = os.lstat(f"{root.path(directory or '/')}/{name}")
        if not stat.S_ISSOCK(facts.st_mode) or not netns:
            return 0
        with open_netns(netns, root) as pods, open_switch_netns(switch_netns or OWN, root) as switchs:
            found, refused = unix_sockets((pods.fileno(), switchs.fileno()))
    except (OSError, RuntimeError, UserspaceError):  # the second: no thread can be started
        return 0
    mine = [each for each in found if (each.inode, each.device) == file_of(facts)]
    waits = any(each.listens for each in mine) and all(each.listens and not each.unaccepted for each in mine)
    return facts.st_ino if waits and not refused else 0

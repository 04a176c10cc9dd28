"""Sockets for other users, which only root can make or be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from userspace_cni.fastpath.vhost.socket_paths import ListeningSocket, SocketAccess


def test_another_owner(place: Path) -> None:
    """Root may make a socket for another user."""
    with ListeningSocket(str(place / "s"), SocketAccess(owner=65534, group=65533)):
        facts = (place / "s").stat()
    assert (facts.st_uid, facts.st_gid) == (65534, 65533)


def test_as_nobody(place: Path) -> None:
    """A user who may write in the directory can listen there without being root, and gets an error where it may not connect."""
    place.chmod(0o777)
    script = (
        "import os, sys\n"
        "from userspace_cni.fastpath.vhost.socket_paths import *\n"
        "from userspace_cni.linux.instant import Instant\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "with ListeningSocket(sys.argv[1] + '/mine') as mine: connect(sys.argv[1] + '/mine', Instant.after(60)).close()\n"
        "try: connect(sys.argv[1] + '/other', Instant.after(60))\n"
        "except Exception as error: print(error)\n"
    )
    with ListeningSocket(str(place / "other")):
        done = subprocess.run([sys.executable, "-c", script, str(place)], capture_output=True, text=True, check=True)
    assert "write permission" in done.stdout

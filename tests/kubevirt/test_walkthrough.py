"""docs/kubevirt-by-hand.md as it is written: its commands, in order, in one shell, until nothing is left of them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.kubevirt.conftest import PAGES
from tests.lab.pages import COMMANDS, ROOT, blocks
from tests.lab.samples import TRACING, check_page, printed_by, traced
from tests.lab.switch.switch import SCRIPT

pytestmark = pytest.mark.timeout(600)  # the first one may have to make the guest

PAGE = ROOT / "docs" / "kubevirt-by-hand.md"
SECONDS = 300
"""Seconds to wait for what takes 25 s on a quiet machine."""
ENDING = ["--pid", "--fork", "--kill-child", "--mount-proc"]
"""Options of unshare that end what the shell leaves running."""
PLACES = [Path(name) for name in ("/run/kubevirt", "/run/libvirt", "/var/lib/libvirt", "/var/cache/libvirt", "/var/log/libvirt")]
NAMESPACE = Path("/run/netns/by-hand")


def shell() -> list[str]:
    """The command of the page that starts the shell, with an end for all that runs in it."""
    (found,) = re.findall(r"`(unshare [^`]* bash)`", PAGE.read_text())
    *unshare, bash = found.split()
    return [*unshare, *ENDING, bash, "-e"]


@pytest.fixture
def room() -> Iterator[Path]:
    """The parent of the page's directory; after a failed command the rest is removed from the machine."""
    before = [path for path in PLACES if path.exists()]
    with TemporaryDirectory(prefix="uc-") as directory:
        Path(directory).chmod(0o711)  # QEMU's user has to reach the kernel in it
        yield Path(directory)
        for mark in Path(directory).glob("*/ovs/.private-switch"):
            subprocess.run([SCRIPT, "stop", mark.parent], check=True)
    NAMESPACE.unlink(missing_ok=True)
    for path in PLACES:
        if path not in before and path.exists():
            path.rmdir()


def test_what_the_page_installs_is_what_the_tests_have() -> None:
    """The first block, the only one that is not run, installs packages of prepare.sh's list, and then runs prepare.sh."""
    install, *others = (block for block in blocks(PAGE) if block.language == COMMANDS)
    assert [block.is_run for block in (install, *others)] == [False, *(True for _ in others)]
    apt, prepare = install.text.replace("\\\n", " ").splitlines()
    words = apt.split()
    argv = [str(SCRIPT.parent / "prepare.sh"), "--print", "kubevirt"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert words[:2] == ["apt-get", "install"]
    assert {word for word in words[2:] if not word.startswith("-")} <= set(listed)
    assert prepare == "deploy/prepare.sh demo"


def test_the_page_from_nothing_to_a_ping_and_back(room: Path) -> None:
    """Every command succeeds; the guest answers, the tools print the samples, and DEL and the last block leave nothing."""
    before = [path for path in PLACES if path.exists()]
    commands = TRACING + "".join(traced(block) for block in blocks(PAGE) if block.is_run)
    done = subprocess.run(
        shell(),
        input=commands,
        env=os.environ | PAGES | {"TMPDIR": str(room), "LC_ALL": "C.UTF-8"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    told = done.stdout
    assert done.returncode == 0, told
    lines = [line.split() for line in told.splitlines()]
    assert ["+", "<interface", "type='vhostuser'>"] in lines
    assert "3 packets transmitted, 3 packets received, 0% packet loss" in told
    ports = [words for words in lines if words[:1] == ["default/virt-launcher-vm-abcde"]]
    assert [words[-3:] for words in ports] == [["up", "connected", "ready"]]
    assert [words[-1] for words in lines if words[:1] == ["default/vm"]] == ["good"]
    assert "Domain 'default_vm' has been undefined" in told
    assert "Bridge" not in told.partition("no attachments on this node")[2]
    check_page(PAGE, printed_by(told))
    assert list(room.iterdir()) == []
    assert not NAMESPACE.exists()
    assert [path for path in PLACES if path.exists()] == before

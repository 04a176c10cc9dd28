"""When a port counts as given up by DPDK: its application listens, and at two looks, some time apart, nothing is connected."""

from __future__ import annotations

import pytest

from userspace_cni.attachment.steps import OvsPort, VhostUserClient
from userspace_cni.base.retries import FIRST_S
from userspace_cni.switch.port_sockets import APART_S, GivenUp

PORT = OvsPort("br0", "p1", VhostUserClient("/run/s"), marks={"netns": "/run/netns/a"})


class Site:
    """One port, its application's socket, and the time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.inode = 7
        self.asked: list[tuple[str, str]] = []
        self.given_up = GivenUp(self.waiting, lambda: self.now)

    def waiting(self, path: str, netns: str) -> int:
        """The socket at which an application waits."""
        self.asked.append((path, netns))
        return self.inode

    def looked(self, after_s: float = 0.0) -> bool:
        """Whether it counts as given up at a look after so long."""
        self.now += after_s
        self.given_up.keep(frozenset({"p1"}))
        return self.given_up.look(PORT)


@pytest.fixture
def site() -> Site:
    return Site()


def test_two_looks_apart(site: Site) -> None:
    """One look proves nothing, nor do two at the same time."""
    assert not site.looked()
    assert not site.looked(APART_S / 2)
    assert not site.given_up.take("p1")
    assert site.looked(APART_S / 2)
    assert site.asked[0] == ("/run/s", "/run/netns/a")
    assert site.given_up.take("p1")
    assert not site.given_up.take("p1")


def test_what_ends_the_suspicion(site: Site) -> None:
    """A connection in between, another application's socket, and a port that
    the switch reports as connected restart the count.
    """
    site.looked()
    site.inode = 0
    assert not site.looked(APART_S)
    site.inode = 7
    assert not site.looked()
    site.inode = 8
    assert not site.looked(APART_S)
    site.given_up.keep(frozenset())
    assert not site.looked(APART_S)
    assert not site.given_up.take("p1")


def test_less_and_less_often(site: Site) -> None:
    """A port that is given up again is made anew after a pause, which doubles."""
    for pause_s in (0.0, FIRST_S, 2 * FIRST_S):
        site.looked()
        assert site.looked(APART_S) == (pause_s <= APART_S)
        assert site.looked(pause_s)
        assert site.given_up.take("p1")

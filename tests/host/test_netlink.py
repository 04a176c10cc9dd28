"""Messages of netlink: several in one send, each with its own answer, in the namespace in which the connection was made."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

import pytest

from userspace_cni.host.netlink.netns import open_netns
from userspace_cni.linux import netlink as codec
from userspace_cni.linux.netlink import Message, NetlinkConnection

GETLINK, NEWLINK, DELLINK = 18, 16, 17
IFNAME, LINKINFO, KIND = 3, 18, 1


def link(kind: int, flags: int, *attributes: bytes, index: int = 0) -> Message:
    return Message(kind, flags, struct.pack("=BxHiII", 0, 0, index, 0, 0) + b"".join(attributes))


def made(name: str) -> Message:
    """A pair of veth with one name given."""
    kind = codec.nest(LINKINFO, codec.attribute(KIND, b"veth"))
    return link(NEWLINK, codec.CREATE | codec.EXCL, codec.text(IFNAME, name), kind)


@pytest.fixture
def kernel(sandbox: str) -> Iterator[NetlinkConnection]:
    """A connection in a namespace of the test's own."""
    with open_netns(sandbox) as entered, entered.do(lambda: NetlinkConnection(codec.ROUTE)) as connection:
        yield connection


def names(kernel: NetlinkConnection) -> set[str]:
    found = kernel.ask(link(GETLINK, codec.DUMP))
    return {codec.as_text(codec.attributes(payload[16:])[IFNAME]) for _, payload in found}


def test_each_message_has_its_answer(kernel: NetlinkConnection) -> None:
    """Of several messages in one send the kernel does what it can, and refuses others with errno and its own words."""
    before = names(kernel)
    first, again, asked, bad = kernel.exchange(
        made("a0"), made("a0"), link(GETLINK, 0, codec.text(IFNAME, "a0")), link(DELLINK, 0, index=9999)
    )
    assert first.error is None
    assert again.error
    assert again.error.errno == errno.EEXIST
    assert [codec.as_text(codec.attributes(payload[16:])[IFNAME]) for _, payload in asked.replies] == ["a0"]
    assert bad.error
    assert bad.error.errno == errno.ENODEV
    assert names(kernel) - before >= {"a0"}
    with pytest.raises(OSError, match="mtu greater") as caught:
        kernel.send(link(NEWLINK, 0, codec.text(IFNAME, "a0"), codec.u32(4, 1 << 20)))
    assert caught.value.errno == errno.EINVAL


def test_listing_longer_than_a_buffer(kernel: NetlinkConnection) -> None:
    """A listing of many messages is read to its end."""
    kernel.send(*(made(f"a{number}") for number in range(150)))
    assert {f"a{number}" for number in range(150)} <= names(kernel)


def test_a_batch_of_nftables(sandbox: str) -> None:
    """Either all of a batch is done or nothing, and a failure of the batch itself is raised."""
    begin, end = (Message(kind, 0, struct.pack("!BBH", 0, 0, 10), silent=True) for kind in (16, 17))

    def table(kind: int, flags: int, name: str) -> Message:
        return Message(10 << 8 | kind, flags, struct.pack("!BBH", 5, 0, 0) + codec.text(1, name))

    with open_netns(sandbox) as entered, entered.do(lambda: NetlinkConnection(codec.NETFILTER)) as kernel:
        answers = kernel.exchange(begin, table(0, codec.CREATE, "one"), table(2, 0, "absent"), end)
        assert [answer.error and answer.error.errno for answer in answers] == [None, None, errno.ENOENT, None]
        answers = kernel.exchange(begin, table(2, 0, "absent"), table(0, codec.CREATE, "one"), end)
        assert [answer.error and answer.error.errno for answer in answers] == [None, errno.ENOENT, None, None]
        assert kernel.ask(table(1, codec.DUMP, "")) == []
        kernel.send(begin, table(0, codec.CREATE, "one"), end)
        assert len(kernel.ask(Message(10 << 8 | 1, codec.DUMP, struct.pack("!BBH", 5, 0, 0)))) == 1
        unknown = Message(16, 0, struct.pack("!BBH", 0, 0, 200), silent=True)
        with pytest.raises(OSError, match=r".") as caught:
            kernel.send(unknown, table(0, codec.CREATE, "two"), end)
        assert caught.value.errno == errno.EINVAL
        assert len(kernel.ask(Message(10 << 8 | 1, codec.DUMP, struct.pack("!BBH", 5, 0, 0)))) == 1

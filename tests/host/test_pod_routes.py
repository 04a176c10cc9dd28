"""Routes of ours in real namespaces are made and removed, others stay, and no namespace is mistaken for another."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from tests.lab.network.dual_pod import DualPod, dual_pod
from tests.lab.node.forked import server
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import inside, veth
from tests.unit.routes.building import route
from userspace_cni.base.errors import BadEnvironment, ContainerGone, HostNamespace, NameTaken, UserspaceError
from userspace_cni.base.routing import DesiredRoute, Inside, PodRoute
from userspace_cni.host.pod_net.pod_routes import PodNamespace, PodRoutes, RoutePass
from userspace_cni.linux.netlink import Answer, Message, NetlinkConnection
from userspace_cni.routes.cluster_facts import NOTHING_KNOWN, RoutePod
from userspace_cni.routes.resolving import resolve
from userspace_cni.routes.rules import Rulebook

OURS = 148


class LookedAt(DualPod):
    """A pod, and how a pass looks at it."""

    def look(self) -> Inside:
        return PodRoutes(OURS).look(PodNamespace("box", self.path))


@pytest.fixture
def pod() -> Iterator[LookedAt]:
    """A pod with eth0, which has the default routes, and eth1."""
    with dual_pod() as made:
        yield LookedAt(made.path, made.beyond)


def want(text: str, metric: int = 0) -> DesiredRoute:
    """The route "dst dev" or "dst via dev"."""
    dst, *via, dev = text.split()
    network = ip_network({"default": "0.0.0.0/0", "default6": "::/0"}.get(dst, dst))
    return DesiredRoute(network, dev, ip_address(via[0]) if via else None, metric or (100 if network.version == 6 else 0))


def converge(pod: DualPod, *wanted: str) -> RoutePass:
    """Make exactly these the routes of ours in the pod."""
    return PodRoutes(OURS).converge(PodNamespace("box", pod.path), lambda _: [want(each) for each in wanted])


def table(pod: DualPod, version: int = 4) -> list[str]:
    """Routes that are ours, as "dst via dev"."""
    return [each.removesuffix(f" {OURS}") for each in pod.routes(version) if each.endswith(f" {OURS}")]


def test_routes_come_and_go(pod: DualPod) -> None:
    """Desired routes are made, others of ours removed, and a pass with nothing to do changes nothing."""
    done = converge(pod, "10.9.0.0/24 10.2.0.1 eth1", "10.8.0.7/32 eth1", "fd09::/64 fd02::1 eth1")
    assert (len(done.added), done.removed, done.refused) == (3, (), ())
    assert table(pod) == ["10.8.0.7 - eth1", "10.9.0.0/24 10.2.0.1 eth1"]
    assert table(pod, 6) == ["fd09::/64 fd02::1 eth1"]
    again = converge(pod, "10.9.0.0/24 10.2.0.1 eth1", "10.8.0.7/32 eth1", "fd09::/64 fd02::1 eth1")
    assert (again.added, again.removed, again.refused) == ((), (), ())
    done = converge(pod, "10.9.0.0/24 10.1.0.1 eth0")
    assert ([str(each) for each in done.added], len(done.removed)) == (["10.9.0.0/24 via 10.1.0.1 dev eth0"], 3)
    assert (table(pod), table(pod, 6)) == (["10.9.0.0/24 10.1.0.1 eth0"], [])
    converge(pod)
    assert table(pod) == []


def test_a_pod_with_thousands_of_routes(pod: DualPod) -> None:
    """Ours are made and removed as in other pods, but its routes are not
    remembered, except for the answers that all pods share.
    """
    commands = [f"route add 10.{100 + each // 256}.{each % 256}.0/24 dev eth1" for each in range(10_000)]
    subprocess.run(["nsenter", f"--net={pod.path}", "ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)
    kept = PodRoutes(OURS)
    for _ in range(3):  # looks, of which the last one finds nothing to do
        kept.converge(PodNamespace("box", pod.path), lambda _: [want("10.9.0.0/24 10.2.0.1 eth1")])
    assert table(pod) == ["10.9.0.0/24 10.2.0.1 eth1"]
    gc.collect()
    assert sum(isinstance(each, PodRoute) for each in gc.get_objects()) < 5000
    kept.converge(PodNamespace("box", pod.path), lambda _: ())
    assert table(pod) == []


def test_the_default_route_changes_and_comes_back(pod: DualPod) -> None:
    """Ours takes effect while the other stays behind it, and that one takes effect again afterwards; for IPv6 by metric."""
    before = pod.routes(), pod.routes(6)
    converge(pod, "default 10.2.0.1 eth1", "default6 fd02::1 eth1")
    assert [each for each in pod.routes() if each.startswith("default")] == [
        f"default 10.2.0.1 eth1 {OURS}",
        "default 10.1.0.1 eth0 3",
    ]
    assert (pod.way("192.0.2.1"), pod.way("2001:db8::1")) == ("eth1", "eth1")
    converge(pod)
    assert (pod.routes(), pod.routes(6)) == before
    assert (pod.way("192.0.2.1"), pod.way("2001:db8::1")) == ("eth0", "eth0")


def test_another_via(pod: DualPod) -> None:
    """The new next hop replaces the former one: for IPv4 before that is removed, for IPv6 in one message."""
    converge(pod, "10.9.0.0/24 10.2.0.1 eth1", "fd09::/64 fd02::1 eth1")
    done = converge(pod, "10.9.0.0/24 10.2.0.9 eth1", "fd09::/64 fd02::9 eth1")
    assert done.refused == ()
    assert (table(pod), table(pod, 6)) == (["10.9.0.0/24 10.2.0.9 eth1"], ["fd09::/64 fd02::9 eth1"])


def test_from_the_link_to_a_next_hop_and_back(pod: DualPod) -> None:
    """The two routes are distinguished, though only their next hops differ."""
    for hop in ("", "10.2.0.1 ", "", "10.2.0.1 "):
        six = hop and "fd02::1 "
        converge(pod, f"10.9.0.0/24 {hop}eth1", f"fd09::/64 {six}eth1")
        assert table(pod) == [f"10.9.0.0/24 {hop or '- '}eth1"]
        assert table(pod, 6) == [f"fd09::/64 {six or '- '}eth1"]
    pod.ip("route", "append", "10.9.0.0/24", "dev", "eth1", "proto", str(OURS))
    converge(pod)
    assert table(pod) == []


def test_another_number(pod: DualPod) -> None:
    """Routes with the former number do not count in decisions, and are replaced: IPv4 before they go, IPv6 in one message."""
    former = "default 10.2.0.1 eth1", "10.8.0.0/16 eth1", "10.9.0.0/16 eth1", "fd08::/64 fd02::1 eth1", "fd09::/64 fd02::1 eth1"
    converge(pod, *former)
    kernel = PodRoutes(200)
    kernel.former = frozenset({OURS, 201})
    pod.ip("route", "add", "10.7.0.0/16", "dev", "eth1", "proto", "201")
    seen: list[Inside] = []

    def decide(inside: Inside) -> list[DesiredRoute]:
        seen.append(inside)
        return [want(each) for each in ("default 10.2.0.1 eth1", "10.9.0.0/16 eth1", "fd09::/64 fd02::9 eth1")]

    done = kernel.converge(PodNamespace("box", pod.path), decide)
    assert done.refused == ()
    assert not any(each.protocol == OURS for each in seen[0].routes)
    ours = [each for version in (4, 6) for each in pod.routes(version) if each.endswith(" 200")]
    assert ours == ["default 10.2.0.1 eth1 200", "10.9.0.0/16 - eth1 200", "fd09::/64 fd02::9 eth1 200"]
    assert table(pod) == table(pod, 6) == []
    assert not any(each.endswith(" 201") for each in pod.routes())
    assert "default 10.1.0.1 eth0 3" in pod.routes()


def test_routes_of_others_stay(pod: DualPod) -> None:
    """Another program's route to the same destination, also one that it puts before ours, is neither changed nor removed."""
    pod.ip("route", "add", "10.9.0.0/24", "via", "10.1.0.1")
    converge(pod, "10.9.0.0/24 10.2.0.1 eth1")
    pod.ip("route", "prepend", "10.9.0.0/24", "via", "10.1.0.9")
    assert pod.way("10.9.0.1") == "eth0"
    assert converge(pod, "10.9.0.0/24 10.2.0.1 eth1").refused == ()
    assert [each for each in pod.routes() if each.startswith("10.9")] == [
        f"10.9.0.0/24 10.2.0.1 eth1 {OURS}",
        "10.9.0.0/24 10.1.0.9 eth0 3",
        "10.9.0.0/24 10.1.0.1 eth0 3",
    ]
    converge(pod)
    assert [each for each in pod.routes() if each.startswith("10.9")] == [
        "10.9.0.0/24 10.1.0.9 eth0 3",
        "10.9.0.0/24 10.1.0.1 eth0 3",
    ]


def test_a_next_hop_of_another_program_in_one_route_with_ours(pod: LookedAt) -> None:
    """The kernel makes one IPv6 route of both, under our number: only ours is removed.

    Where ours is wanted, the conflict is reported.
    """
    for wanted, refused in (((), ()), (("fd09::/64 fd02::1 eth1",), ("fd09::/64 via fd02::1 dev eth1: File exists",))):
        converge(pod, "fd09::/64 fd02::1 eth1")
        pod.ip("-6", "route", "append", "fd09::/64", "via", "fd01::9", "metric", "100")
        [merged] = pod.look().ours(OURS)
        assert (merged.dev, [hop for _, hop in merged.hops]) == ("", [ip_address("fd02::1"), ip_address("fd01::9")])
        assert converge(pod, *wanted).refused == refused
        assert "fd09::/64 fd01::9 eth0 3" in pod.routes(6)
        assert (table(pod, 6), pod.look().ours(OURS)) == ([], ())
        pod.ip("-6", "route", "delete", "fd09::/64")


def test_what_is_not_ours_whatever_its_number(pod: DualPod) -> None:
    """Routes with several next hops, with a nexthop object, for one TOS, or to nothing are never ours, with any number."""
    pod.ip("nexthop", "add", "id", "9", "via", "10.1.0.1", "dev", "eth0")
    odd = (
        "10.31.0.0/16 nhid 9",
        "10.32.0.0/16 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev eth1",
        "10.33.0.0/16 tos 0x10 dev eth0",
        "blackhole 10.34.0.0/16",
        "10.35.0.0/16 dev eth0 scope host",
    )
    for each in odd:
        pod.ip("route", "add", "proto", str(OURS), *each.split())
    wanted = [f"10.{number}.0.0/16 eth1" for number in (33, 34)]
    assert [str(each) for each in converge(pod, *wanted).added] == ["10.33.0.0/16 dev eth1", "10.34.0.0/16 dev eth1"]
    again = converge(pod, *wanted)
    assert (again.added, again.removed, again.refused) == ((), (), ())
    assert pod.way("10.34.0.1") == "eth1"
    removed = converge(pod).removed
    assert sorted(str(each.dst) for each in removed) == ["10.33.0.0/16", "10.34.0.0/16"]
    left = pod.ip("-N", "route", "show", "proto", str(OURS))
    assert [f"10.{number}.0.0/16" in left for number in (31, 32, 33, 34, 35)] == [True, True, True, True, False]


def test_what_others_have_is_seen_as_it_is(pod: LookedAt) -> None:
    """Others' routes are read with a next hop of the other IP version, several, none, or one declared on-link."""
    for each in (
        "10.31.0.0/16 via inet6 fd01::1 dev eth0",
        "10.32.0.0/16 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev eth1",
        "blackhole 10.34.0.0/16",
        "10.35.0.0/16 via 192.0.2.9 dev eth0 onlink",
    ):
        pod.ip("route", "add", *each.split())
    seen = {str(each.dst): each for each in pod.look().others(OURS)}
    assert [seen[f"10.{number}.0.0/16"].dev for number in (31, 32, 34, 35)] == ["", "", "", "eth0"]
    assert [each.onlink for each in seen.values() if str(each.via) == "192.0.2.9"] == [True]
    on_link = replace(want("10.36.0.0/16 192.0.2.9 eth0"), onlink=True)
    assert PodRoutes(OURS).converge(PodNamespace("box", pod.path), lambda _: [on_link]).refused == ()
    assert table(pod) == ["10.36.0.0/16 192.0.2.9 eth0"]


def test_a_default_route_without_what_must_stay(pod: DualPod) -> None:
    """It is not made when the kernel refuses a route that must stay, of the same IP version.

    The rest is, and the next pass tries again.
    """
    kept = replace(want("10.96.0.0/12 192.0.2.9 eth0"), kept=True)
    wanted = [kept, *map(want, ("default 10.2.0.1 eth1", "default6 fd02::1 eth1", "10.8.0.0/16 eth1"))]
    done = PodRoutes(OURS).converge(PodNamespace("box", pod.path), lambda _: wanted)
    assert sorted(map(str, done.added)) == ["10.8.0.0/16 dev eth1", "default via fd02::1 dev eth1"]
    assert done.refused[1] == f"default via 10.2.0.1 dev eth1: not made, for {kept} is refused"
    assert (pod.way("203.0.113.1"), pod.way("2001:db8::1")) == ("eth0", "eth1")
    pod.ip("route", "add", "192.0.2.9", "dev", "eth0")
    done = PodRoutes(OURS).converge(PodNamespace("box", pod.path), lambda _: wanted)
    assert (sorted(map(str, done.added)), done.refused) == ([str(kept), "default via 10.2.0.1 dev eth1"], ())
    assert (pod.way("203.0.113.1"), pod.way("10.96.0.7")) == ("eth1", "eth0")


def test_an_end_before_the_default_route(pod: DualPod, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a death, routes that must stay exist with the former default route.

    The next pass makes ours, and removes the rest.
    """
    converge(pod, "10.7.0.0/16 eth1")
    wanted = [replace(want("10.96.0.0/12 10.1.0.1 eth0"), kept=True), want("default 10.2.0.1 eth1")]
    exchange, exchanges = NetlinkConnection.exchange, []

    def ending(kernel: NetlinkConnection, *messages: Message) -> list[Answer]:
        exchanges.append(messages)
        if len(exchanges) == 5:  # after three listings and what comes first
            raise InterruptedError(errno.EINTR, "the process ends here")
        return exchange(kernel, *messages)

    with monkeypatch.context() as patched:
        patched.setattr(NetlinkConnection, "exchange", ending)
        with pytest.raises(UserspaceError):
            PodRoutes(OURS).converge(PodNamespace("box", pod.path), lambda _: wanted)
    assert table(pod) == ["10.7.0.0/16 - eth1", "10.96.0.0/12 10.1.0.1 eth0"]
    assert PodRoutes(OURS).converge(PodNamespace("box", pod.path), lambda _: wanted).refused == ()
    assert table(pod) == ["default 10.2.0.1 eth1", "10.96.0.0/12 10.1.0.1 eth0"]


def test_a_next_hop_that_another_of_ours_reaches(pod: DualPod) -> None:
    """The route to a next hop is made first, however short its prefix is."""
    assert converge(pod, "10.200.1.0/24 10.100.0.1 eth1", "10.100.0.0/16 eth1").refused == ()
    assert table(pod) == ["10.100.0.0/16 - eth1", "10.200.1.0/24 10.100.0.1 eth1"]


def test_a_table_that_is_too_full(pod: DualPod, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that changes its network cannot fill our memory; the error says what to look at, and ours are repaired later."""
    monkeypatch.setattr("userspace_cni.host.pod_net.pod_routes.LISTED_MAX", 30)
    for number in range(30):
        pod.ip("route", "add", f"10.9.{number}.0/24", "dev", "eth1")
    with pytest.raises(UserspaceError, match="more than 30 entries") as raised:
        converge(pod, "10.8.0.0/24 eth1")
    assert "ip route show table all, in the pod" in str(raised.value)
    assert "CAP_NET_ADMIN" not in str(raised.value)
    pod.ip("route", "flush", "root", "10.9.0.0/16", "scope", "link")
    assert [str(each.dst) for each in converge(pod, "10.8.0.0/24 eth1").added] == ["10.8.0.0/24"]


def test_an_ipv6_route_of_our_metric_by_another(pod: DualPod) -> None:
    """The kernel refuses ours, which is reported; the other's stays, and so do the rest of ours."""
    pod.ip("-6", "route", "add", "fd09::/64", "via", "fd01::1", "metric", "100")
    done = converge(pod, "fd09::/64 fd02::1 eth1", "fd08::/64 fd02::1 eth1")
    assert [str(each.dst) for each in done.added] == ["fd08::/64"]
    assert done.refused == ("fd09::/64 via fd02::1 dev eth1: File exists",)
    assert "fd09::/64 fd01::1 eth0 3" in pod.routes(6)


def test_what_the_kernel_refuses(pod: DualPod) -> None:
    """A next hop that is not on the link is reported by name; the other routes are made."""
    done = converge(pod, "10.9.0.0/24 192.0.2.9 eth1", "10.8.0.0/24 10.2.0.1 eth1")
    assert done.refused == ("10.9.0.0/24 via 192.0.2.9 dev eth1: Network is unreachable (Nexthop has invalid gateway)",)
    assert table(pod) == ["10.8.0.0/24 10.2.0.1 eth1"]


def test_a_link_that_goes_down_and_comes_back(pod: DualPod) -> None:
    """Its routes vanished without a notice; the next pass makes them again."""
    converge(pod, "10.9.0.0/24 10.2.0.1 eth1")
    pod.ip("link", "set", "eth1", "down")
    assert table(pod) == []
    assert len(converge(pod, "10.9.0.0/24 10.2.0.1 eth1").refused) == 1
    pod.ip("link", "set", "eth1", "up")
    converge(pod, "10.9.0.0/24 10.2.0.1 eth1")
    assert table(pod) == ["10.9.0.0/24 10.2.0.1 eth1"]


def test_more_routes_than_one_send_has(pod: DualPod) -> None:
    """They are made and removed in several."""
    many = [f"10.9.{each // 256}.{each % 256}/32 10.2.0.1 eth1" for each in range(300)]
    assert len(converge(pod, *many).added) == 300
    assert len(table(pod)) == 300
    assert len(converge(pod).removed) == 300


def test_what_is_seen(pod: DualPod) -> None:
    """Links with their addresses and states, and routes of both versions with their owner."""
    converge(pod, "10.8.0.7/32 eth1")
    seen = PodRoutes(OURS).look(PodNamespace("box", pod.path))
    assert set(seen.links) == {"lo", "eth0", "eth1"}
    eth1 = seen.links["eth1"]
    assert (eth1.up, eth1.has(4), eth1.has(6), seen.links["lo"].has(6)) == (True, True, True, True)
    assert {str(each) for each in eth1.addresses} >= {"10.2.0.2/16", "fd02::2/64"}
    found = {(str(each.dst), str(each.via), each.dev, each.metric, each.protocol) for each in seen.routes}
    assert found >= {
        ("0.0.0.0/0", "10.1.0.1", "eth0", 0, 3),
        ("10.2.0.0/16", "None", "eth1", 0, 2),
        ("10.8.0.7/32", "None", "eth1", 0, OURS),
        ("::/0", "fd01::1", "eth0", 1024, 3),
    }


def test_the_way_now(pod: DualPod) -> None:
    """The kernel's own answer, with the source address; None if there is no route."""
    routes, place = PodRoutes(OURS), PodNamespace("box", pod.path)
    way = routes.way_to(place, ip_address("192.0.2.1"))
    assert (way.dev, str(way.via), str(way.source), way.problem) == ("eth0", "10.1.0.1", "10.1.0.2", "")
    assert routes.way_to(place, ip_address("10.2.0.9")).via is None
    pod.ip("route", "delete", "default")
    assert "unreachable" in routes.way_to(place, ip_address("192.0.2.1")).problem


def test_namespaces_of_the_node(pod: DualPod) -> None:
    """This process's namespace, and one that it was told of, are never entered, whatever claims that they are a pod's."""
    for path, never in (("/proc/self/ns/net", ()), (pod.path, (pod.path,))):
        with pytest.raises(HostNamespace):
            PodRoutes(OURS, never).converge(PodNamespace("box", path), lambda _: pytest.fail("it was asked"))


def test_a_namespace_that_is_another_one_by_now(pod: DualPod) -> None:
    """A path that was reused for another sandbox, one that two claim, one of another inode, and one that is gone are refused."""
    routes = PodRoutes(OURS)
    routes.look(PodNamespace("box", pod.path))
    with pytest.raises(NameTaken, match="is said to be that of sandbox other, and of box"):
        routes.look(PodNamespace("other", pod.path))
    with netns() as other:
        subprocess.run(["mount", "--bind", other, pod.path], check=True)
        try:
            with pytest.raises(ContainerGone, match="another namespace by now"):
                routes.look(PodNamespace("box", pod.path))
        finally:
            subprocess.run(["umount", "--lazy", pod.path], check=True)
        routes.keep(["box"])
        routes.look(PodNamespace("box", pod.path))
        routes.keep([])
        routes.look(PodNamespace("other", pod.path))
        with pytest.raises(ContainerGone):
            routes.look(PodNamespace("third", other, os.stat(pod.path).st_ino))  # noqa: PTH116 - the namespace, not the link
        gone = other
    with pytest.raises((ContainerGone, BadEnvironment)):
        routes.look(PodNamespace("third", gone))


def test_no_namespace_is_kept_alive(pod: DualPod) -> None:
    """After passes over a namespace that was deleted, its links are gone: we hold nothing of it."""
    routes = PodRoutes(OURS)
    with netns() as brief:
        veth(pod.path, "beside", brief, "eth0", "10.3.0.2/24")
        routes.converge(PodNamespace("brief", brief), lambda _: [want("10.9.0.0/24 10.3.0.1 eth0")])
        inside(pod.path, "ip", "link", "show", "beside")
    wait_until(lambda: "beside" not in pod.ip("link"), what="the link went with its other end")


def test_killed_amid_passes(pod: DualPod) -> None:
    """kill -9 at any time leaves only routes that were desired before or after; the next pass completes it."""
    for delay in range(12):
        process = server().Process(target=flip, args=(pod.path,))
        process.start()
        threading.Event().wait(0.4 + delay * 0.003)
        assert process.pid
        os.kill(process.pid, signal.SIGKILL)
        process.join(60)
        found = set(table(pod))
        assert found <= set(EVEN) | set(ODD)
        converge(pod, *EVEN)
        assert set(table(pod)) == set(EVEN)
    assert [each for each in pod.routes() if not each.endswith(f" {OURS}")] == ["default 10.1.0.1 eth0 3"]


EVEN = [f"10.9.{each}.0/24 10.2.0.1 eth1" for each in range(0, 40, 2)]
ODD = [f"10.9.{each}.0/24 10.2.0.9 eth1" for each in range(1, 40, 2)]


def flip(path: str) -> None:
    """Make these and those the pod's routes by turns, until killed."""
    routes = PodRoutes(OURS)

    def wanted(texts: list[str]) -> list[DesiredRoute]:
        return [want(each) for each in texts]

    while True:
        for texts in (EVEN, ODD):
            routes.converge(PodNamespace("box", path), lambda _, texts=texts: wanted(texts))  # type: ignore[misc]


def test_namespaces_deleted_and_reused() -> None:
    """While namespaces are deleted, and their paths and inodes reused, no route is made in one for which it was not meant."""
    routes, wrong, passes = PodRoutes(OURS), [], 0
    for each in range(40):
        with netns("cni-same") as path:
            marker = f"10.{each + 1}.0.1/24"
            inside(path, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "peer")
            inside(path, "ip", "address", "add", marker, "dev", "eth0")
            inside(path, "ip", "link", "set", "eth0", "up")
            inside(path, "ip", "link", "set", "peer", "up")
            place = PodNamespace(f"box{each}", path, os.stat(path).st_ino)  # noqa: PTH116 - the namespace, not the link

            def decide(seen: Inside, marker: str = marker) -> list[DesiredRoute]:
                if marker not in map(str, seen.links["eth0"].addresses):
                    wrong.append(marker)
                return [want(f"{marker.replace('.0.1/24', '.9.0/24')} eth0")]

            for _ in range(25):
                routes.converge(place, decide)
                passes += 1
        stale = place
        with netns("cni-same"), pytest.raises((ContainerGone, BadEnvironment)):
            routes.converge(stale, decide)
    assert (wrong, passes) == ([], 1000)


def test_routes_by_gateways_that_lead_to_one_another(pod: LookedAt) -> None:
    """What is decided about them is what the kernel accepts, also if one existed before the other was asked for."""

    def ask(*entries: str) -> tuple[RoutePass, list[str]]:
        asked = Rulebook([route("r", "fd0a::/48 eth1", *entries)], ()).claims(RoutePod("shop", "web-7", "u1"))
        done = PodRoutes(OURS).converge(PodNamespace("box", pod.path), lambda found: resolve(asked, found, NOTHING_KNOWN).routes)
        return done, table(pod, 6)

    ask("fd0a::/64 eth1 fd02::1")
    done, there = ask("fd0a::/64 eth1 fd02::1", "fd09::/80 eth1 fd0a::1")
    assert (done.refused, there) == ((), ["fd09::/80 fd0a::1 eth1", "fd0a::/48 - eth1"])

"""Every text, list and object that others write is read in linear time: what a tenant writes costs what its length says.

Each reader gets an input of size n and one of 8n. Linear is 8 times the processor time, quadratic 64. This file alone asserts on
time: it is the thread's own processor time, the least of several, so that a busy machine does not change it. For that the larger
input has to fit into the core's own cache: beside other programs one that does not took up to 44 times the time.
"""

from __future__ import annotations

import gc
import json
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any, Final

import pytest

from kubevirt.annotation import ANNOTATION, read_annotation
from kubevirt.domain import Policy, find_missing_networks, mutate
from kubevirt.lint.linted_documents import ManifestDocument, judge
from kubevirt.network_info import read_network_info
from kubevirt.patience import Patience
from kubevirt.sidecar_errors import KubevirtError
from kubevirt.socket_search import SidecarPlaces, resolve
from kubevirt.vm_socket_source import VmSocketSource
from kubevirt.vmi import VirtualMachine, VmInterface, VmNetwork, read_vmi
from kubevirt.xml_document import read_document
from tests.unit.routes import building
from userspace_cni.attachment.facts import LinkFacts, Pod
from userspace_cni.attachment.link_plan import plan_link
from userspace_cni.attachment.records import Record, record_from_json, record_to_json
from userspace_cni.attachment.steps import PodNote
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.gateways import Gateway, StaticRoute, clash
from userspace_cni.base.routing import DesiredRoute, Inside, PodLink, PodRoute
from userspace_cni.base.subnets import read_subnet, without
from userspace_cni.cli.manifest_files import _documents
from userspace_cni.cli.support.known_keys import known_text
from userspace_cni.cli.support.redaction import Redactor
from userspace_cni.cni import keys, outline, protocol, wire
from userspace_cni.cni.addressing import missing, read_addresses_noted, read_noted
from userspace_cni.cni.annotations import PodInterface, is_read, json_object
from userspace_cni.cni.bandwidth import limits_of
from userspace_cni.cni.mirror_chain import read_part
from userspace_cni.cni.mirror_keys import mirrors_of
from userspace_cni.cni.options import read_options
from userspace_cni.cni.request import Environment, Request, decode, subject_of, valid_attachments
from userspace_cni.cni.request import Network as Named
from userspace_cni.cni.result import ResultAddresses, build, read_addresses, read_prev_result
from userspace_cni.consumers import CONSUMERS
from userspace_cni.controller import cluster as controlled
from userspace_cni.controller.ranges import NodeRange, divide
from userspace_cni.controller.writes import summaries
from userspace_cni.diagnosis.networks import JudgedNetworks, Place, judge_document, judge_text
from userspace_cni.diagnosis.traps import findings_with_refusals
from userspace_cni.host.netlink import route_messages as kernel_routes
from userspace_cni.host.node_net.translations import rules
from userspace_cni.host.pod_net import pod_routes
from userspace_cni.host.runtimes.cni_cache import _sandbox
from userspace_cni.kube.notes import _with_entry, _without_entry
from userspace_cni.kube.pod_requests import view_of
from userspace_cni.kube.watch import _remembered
from userspace_cni.linux import netlink as codec
from userspace_cni.network import object_specs
from userspace_cni.network.spec_list import Desired, merge_sources
from userspace_cni.node.objects import KeptObject, KnownObjects, OwnNode
from userspace_cni.node.remarks import remarks_on
from userspace_cni.pod import document, eal
from userspace_cni.pod.source import _status
from userspace_cni.pod.strict_json import JsonReader, marks, once
from userspace_cni.routes import known
from userspace_cni.routes.cluster_facts import NOTHING_KNOWN
from userspace_cni.routes.cluster_facts import RoutePod as RoutedPod
from userspace_cni.routes.passes import Passes, Rules, VisitedSandbox
from userspace_cni.routes.places import LocatedSandbox
from userspace_cni.routes.reports import describe, uses
from userspace_cni.routes.resolving import resolve as resolve_routes
from userspace_cni.routes.resource import read_route
from userspace_cni.routes.rules import Rulebook

TIMES: Final = 8
RATIO_MAX: Final = 20
TRIES: Final = 5
LOOKS: Final = 3
Read = Callable[[], object]
READERS: Final[dict[str, tuple[Callable[[int], Read], int]]] = {}
"""By name: a function that makes the reader of an input of size n, and n."""


def reader(size: int) -> Callable[[Callable[[int], Read]], Callable[[int], Read]]:
    """Measure this reader with inputs of that size and of eight times it."""

    def kept(make: Callable[[int], Read]) -> Callable[[int], Read]:
        READERS[make.__name__] = make, size
        return make

    return kept


SPARE = 100_000
"""Objects of 128 bytes: 12 MiB of arenas."""
ONE_OF = 1000
"""How many of them there are for one that stays: an arena has 1 MiB."""


def seconds(read: Read) -> float:
    """The processor time of one reading, even if the input is refused."""
    gc.collect()
    gc.collect()
    began = time.thread_time()
    with suppress(UserspaceError, KubevirtError, ValueError):
        read()
    return time.thread_time() - began


# -- pod/ ----------------------------------------------------------------------------------------------------------------------


def members(count: int, value: object = 1) -> str:
    return ",".join(f'"key{number}":{json.dumps(value)}' for number in range(count))


@reader(200)
def a_key_given_twice(size: int) -> Read:
    """The last two members have one key."""
    text = f'{{{members(size)},"key{size - 1}":1}}'
    return lambda: JsonReader(once).read(text)


@reader(200)
def many_keys_given_twice(size: int) -> Read:
    text = f"{{{members(size)},{members(size)}}}"
    return lambda: JsonReader(once, deepest=9).read(text)


@reader(2000)
def values_in_a_list(size: int) -> Read:
    """Objects in a list, each of which is looked at for half a surrogate pair."""
    text = json.dumps([{"a": "é", "b": []}] * size)
    return lambda: (marks(text), JsonReader(deepest=9).read(text))


@reader(2000)
def values_that_follow_one_another(size: int) -> Read:
    """Without anything between them, and with blanks."""
    text = '{"a":[]} ' * size + " " * size
    return lambda: list(JsonReader(once).stream(text))


@reader(1_000_000)
def one_long_number(size: int) -> Read:
    """A number of so many digits is refused as fast as it is read."""
    text = f"1{'0' * size}.5"
    return lambda: JsonReader(digits_max=32).read(text)


@reader(500_000)
def one_long_string(size: int) -> Read:
    text = '["' + '\\"' * size
    return lambda: JsonReader().read(text)


def entries(count: int) -> list[dict[str, Any]]:
    config = {"iftype": "vhostuser", "vhost": {"mode": "client", "socketfile": "s"}}
    return [{"containerId": "c", "ifName": f"net{number}", "name": "n", "config": config} for number in range(count)]


@reader(300)
def configuration_data(size: int) -> Read:
    """Parsed, changed and written anew."""
    text = document.render(entries(size))

    def read() -> object:
        found = document.parse(text)
        return document.render(document.remove_entry(document.replace_entry(found, found[-1]), "c", "net1"))

    return read


@reader(300)
def dpdk_arguments(size: int) -> Read:
    found = entries(size)
    return lambda: eal.joined(eal.arguments(found, "/x"))


@reader(2000)
def annotations_of_the_downward_api(size: int) -> Read:
    """Lines, of which one is long and full of escapes, and one does not end."""
    text = "".join(f'key{number}="value"\n' for number in range(size)) + 'a="' + '\\"' * size + '"\nb="' + "\\n" * size
    return lambda: document.parse_annotations(text)


@reader(500)
def network_status(size: int) -> Read:
    """A few hundred entries: what eight times as many become still fits into the caches."""
    text = json.dumps([{"interface": f"net{number}", "mac": "02:00:00:00:00:01"} for number in range(size)])
    return lambda: _status(text)


# -- cni/ ----------------------------------------------------------------------------------------------------------------------


def request(**raw: Any) -> Request:
    """An ADD of a network that says this."""
    whole = {"cniVersion": "1.1.0", "name": "net", "type": "userspace", **raw}
    environment = Environment("ADD", "c", "/n", "net1", {}, (), netns_override=False, variables={})
    stdin = json.dumps(whole).encode()
    return Request(environment, Named("net", "1.1.0", str((raw.get("ipam") or {}).get("type", "")), whole), stdin)


def options(**raw: Any) -> Read:
    asked, warnings = request(**raw), list[str]()
    return lambda: read_options(asked, CONSUMERS, warnings.append)


@reader(2000)
def a_configuration(size: int) -> Read:
    """One that is as large as it likes, decoded."""
    text = f'{{"name":"n","cniVersion":"1.1.0",{members(size, [{}])}}}'.encode()
    return lambda: decode(text)


@reader(3000)
def a_configuration_that_is_too_large(size: int) -> Read:
    """It is measured, and DEL finds its name."""
    text = f'{{"cniVersion":"1.1.0",{members(size, [{}])},"name":"n"}}'.encode()
    return lambda: (outline.is_within(text, outline.NEW), outline.read_outline(text))


@reader(10_000)
def an_outline_of_what_is_not_closed(size: int) -> Read:
    """Strings and brackets that do not end."""
    text = b'{"a":' + b"[" * size + b'"\\"' * size
    return lambda: outline.read_outline(text)


@reader(100)
def unknown_keys(size: int) -> Read:
    """Of all blocks, none like a known one, and some nearly."""
    raw = {"host": {f"socketfil{number}xx": 1 for number in range(size)}, **{f"key{number}": 1 for number in range(size)}}
    return lambda: keys.check(raw, lambda _: None)


@reader(200_000)
def blocks_that_are_lists(size: int) -> Read:
    """Lists in the place of objects, and of mirrors."""
    raw = {"host": [{"x": 1}] * size, "mirrors": [{"x": 1}] * size, "netem": [{"x": 1}] * size}
    return lambda: keys.check(raw, lambda _: None)


@reader(500)
def trunks_of_all_vlans(size: int) -> Read:
    return options(host={"bridge": {"trunks": ["0-4094"] * size}})


@reader(50_000)
def asked_addresses(size: int) -> Read:
    return options(runtimeConfig={"ips": ["192.0.2.1/24"] * size}, ipam={"type": "static"})


@reader(5000)
def names_in_dns(size: int) -> Read:
    return options(dns={"search": ["example.org"] * size, "options": ["a"] * size})


@reader(20_000)
def mirrors_of_a_chained_plugin(size: int) -> Read:
    """Far more than there may be."""
    network = request(type="ovs-mirror-producer", mirrors=[{"name": f"m{number}"} for number in range(size)]).network
    return lambda: read_part(network)


def leased(count: int) -> dict[str, Any]:
    """An IPAM plugin's answer."""
    routes = [{"dst": f"10.{number >> 8 & 255}.{number & 255}.0/24", "gw": "192.0.2.1"} for number in range(count)]
    return {"cniVersion": "1.1.0", "ips": [{"address": "192.0.2.7/24", "gateway": "192.0.2.1"}], "routes": routes}


@reader(128)
def a_lease(size: int) -> Read:
    answer = leased(size)
    return lambda: read_addresses(answer, "1.1.0")


@reader(200)
def a_previous_result(size: int) -> Read:
    """Interfaces, addresses and routes, and the new result with them in it."""
    interfaces = [{"name": f"net{number}", "sandbox": "/n"} for number in range(size)]
    raw = {**leased(size), "interfaces": interfaces, "ips": [{"address": "192.0.2.7/24"}] * size}
    return lambda: build("1.1.0", (), prev_result=read_prev_result(raw, "1.1.0"))


@reader(2000)
def valid_attachments_of_gc(size: int) -> Read:
    listed = [{"containerID": f"c{number}", "ifname": "eth0"} for number in range(size)]
    network = request(**{"cni.dev/valid-attachments": listed}).network
    return lambda: valid_attachments(network)


@reader(3000)
def variables_of_a_call(size: int) -> Read:
    """CNI_ARGS with so many items, over the agent's socket."""
    environ = {"CNI_ARGS": ";".join(f"K{number}=%" for number in range(size)), "CNI_CONTAINERID": "c"}
    raw = wire.request_bytes("/api/v1/add", environ, b"{}")

    def read() -> object:
        head, _ = protocol.read_request(raw)
        return subject_of(protocol.environment(head))

    return read


INTERFACE: Final = PodInterface("net", "ns", "eth0", kubeovn_read=True)


def judged_annotations(annotations: Mapping[str, str]) -> Read:
    def read() -> object:
        for each in (missing, read_addresses_noted, read_noted, limits_of):
            try:
                each(annotations, INTERFACE)
            except UserspaceError:
                continue
        return mirrors_of(annotations, INTERFACE, (), ())

    return read


@reader(500)
def many_annotations(size: int) -> Read:
    """Of other networks, of none, and of this network in so many namespaces."""
    found = {f"net.ns{number}.ovn.kubernetes.io/{key}": "" for number in range(size) for key in ("cidr", "mirror")}
    return judged_annotations(found | {f"key{number}": "x" for number in range(size)})


@reader(20_000)
def long_annotations(size: int) -> Read:
    """Lists without an end."""
    text = ",".join(["192.0.2.1/24"] * size)
    theirs = {f"ovn.kubernetes.io/{key}": text for key in ("ip_address", "cidr", "gateway", "routes")}
    return judged_annotations(theirs | {"userspace/mirror": json.dumps({"eth0": ["m"] * size}), "ovn": members(size)})


@reader(150)
def the_former_form_of_ovns_annotation(size: int) -> Read:
    """A dict of Python's with so many items, and as many spaces."""
    items = "".join(f"'k{number}':'v', " for number in range(size))
    return judged_annotations({"ovn": f"{{{items}'k' {' ' * size}}}"})


@reader(1500)
def a_long_annotation_of_ours(size: int) -> Read:
    """A JSON object by interface."""
    text = f'{{{members(size)},"key{size - 1}":1}}'
    return lambda: json_object("userspace/bandwidth", text, "")


@reader(10_000)
def a_name_of_an_annotation(size: int) -> Read:
    """One that begins like those that are read, again and again."""
    name = "ovn." * size + "kubernetes.io/x"
    return lambda: is_read(name)


# -- attachment/, host/, kube/ -------------------------------------------------------------------------------------------------


@reader(128)
def a_plan_of_a_link(size: int) -> Read:
    """Routes, planned and recorded."""
    found = leased(size)
    addresses = ResultAddresses(tuple(found["ips"]), tuple(found["routes"]))
    asked = request(host={"iftype": "veth"}, ipam={"type": "static"})
    chosen = read_options(asked, CONSUMERS, lambda _: None)
    facts = LinkFacts(
        boot_id="b", store="s", netns_inode=1, pod=Pod(), foreign_bridge=False, mtu=1500, opened_as="system", switch_netns=""
    )

    def read() -> object:
        steps = plan_link(asked, chosen, CONSUMERS["pod"], facts, addresses).steps
        record = Record("ready", "net", "c", "net1", steps=steps, result=found)
        return record_from_json(json.loads(json.dumps(record_to_json(record))))

    return read


def wanted_routes(count: int) -> list[kernel_routes.Route]:
    return [kernel_routes.Route.of(each) for each in leased(count)["routes"]]


@reader(1000)
def routes_that_check_looks_for(size: int) -> Read:
    """Each wanted one among as many that are there."""
    wanted, there = wanted_routes(size), list(reversed(wanted_routes(size)))
    return lambda: kernel_routes.find_missing(wanted, there)


@reader(3000)
def an_answer_of_netlink(size: int) -> Read:
    attribute = codec.attribute(1, b"1234")
    payload = b"".join(struct.pack("=IHHII", 16 + len(attribute), 24, 0, 1, 0) + attribute for _ in range(size))
    return lambda: [codec.attributes(payload) for _, _, _, payload in codec._messages(payload)]


def ipv6_routes(count: int, dev: str = "eth1", via: str = "fd00::1") -> Inside:
    """A pod with so many routes of ours."""
    found = tuple(
        PodRoute(ip_network(f"fd01:{number:x}::/64"), ip_address(via), dev, 100, building.OURS)
        for number in reversed(range(count))
    )
    return Inside({dev: PodLink(dev, 2, up=True, addresses=(ip_interface("fd00::2/64"),))}, found)


@reader(256)
def routes_of_a_pod_that_all_change(size: int) -> Read:
    """Each with another gateway than before."""
    inside = ipv6_routes(size)
    wanted = [DesiredRoute(each.dst, "eth1", ip_address("fd00::9"), 100) for each in inside.routes]
    return lambda: pod_routes._changes(inside, wanted, building.OURS, ())


@reader(3000)
def a_file_of_the_runtimes_cache(size: int) -> Read:
    """Arguments, and interfaces in a result."""
    interfaces = [{"name": "eth0", "sandbox": "/run/netns/x"}] * size
    content = {
        "kind": "cniCacheV1",
        "containerId": "c",
        "cniArgs": [[f"K{number}", "v"] for number in range(size)],
        "result": {"interfaces": interfaces},
    }
    return lambda: _sandbox(content)


@reader(200)
def subnets_of_gateways(size: int) -> Read:
    """Rules of translation for so many."""
    subnets = [f"10.{number >> 8}.{number & 255}.0/24" for number in range(size)]
    return lambda: rules([{"port": "gw0", "masquerade": True, "clamp_mss": True, "subnets": subnets, "kept": subnets}])


def pod(count: int) -> dict[str, Any]:
    """A pod as the server sends it: mounts of one volume, volumes, annotations."""
    mounts = [{"name": "shared-dir", "mountPath": f"/m{number}"} for number in range(count)]
    metadata = {
        "namespace": "ns",
        "name": "pod",
        "uid": "u",
        "resourceVersion": "1",
        "annotations": {f"net.ns{number}.ovn.kubernetes.io/cidr": "x" for number in range(count)},
    }
    return {
        "metadata": metadata,
        "spec": {
            "containers": [{"name": "c", "volumeMounts": mounts, "args": ["x"] * count}],
            "volumes": [{"name": f"v{number}", "emptyDir": {}} for number in range(count)],
        },
    }


@reader(500)
def a_pod(size: int) -> Read:
    """As ADD reads it, and as the watch keeps it."""
    thing = pod(size)
    return lambda: (view_of(thing), _remembered(thing))


@reader(100)
def the_annotations_of_a_pod(size: int) -> Read:
    """An entry put into them, and taken out."""
    step = PodNote(
        namespace="ns", pod="pod", uid="u", ifname="net1", container_id="c", mapped_dir="/x/", entry="{}", kubeconfig=""
    )
    annotations = {document.CONFIGURATION_DATA: document.render(entries(size)), document.MAPPED_DIR: "/x/"}
    return lambda: (_with_entry(step, entries(1)[0], "/x/", annotations), _without_entry(step, annotations))


# -- routes/ -------------------------------------------------------------------------------------------------------------------


def destinations(count: int) -> Iterator[str]:
    return (f"172.{16 + (number >> 8)}.{number & 255}.0/24" for number in range(count))


@reader(128)
def a_route(size: int) -> Read:
    selectors = [{"namespace": "ns", "labels": {"a": str(number)}} for number in range(size)]
    entry = [{"dst": dst, "dev": "eth1"} for dst in destinations(size)]
    thing = building.thing("r", route=entry, pods=selectors, feature_gate={f"gate{number}": "x" for number in range(size)})

    def read() -> object:
        book = Rulebook([read_route(thing)], ())
        return book.claims(RoutedPod("ns", "pod", "u", {"a": "none"}))

    return read


def asked_of(count: int, devices: int, gateways: int) -> Any:
    """Claims of so many destinations by devices and gateways."""
    entry = [
        {"dst": dst, "dev": f"eth{number % devices}", "via": f"10.9.{(number % gateways) >> 8}.{number % gateways & 255 or 1}"}
        for number, dst in enumerate(destinations(count))
    ]
    return Rulebook([read_route(building.thing("r", route=entry))], ()).claims(RoutedPod("ns", "pod", "u"))


def furnished(count: int, devices: int) -> Inside:
    """A pod with devices, addresses and routes of its own."""
    links = {
        f"eth{number}": PodLink(
            f"eth{number}", number + 2, up=True, addresses=(ip_interface(f"10.{8 + (number >> 8)}.{number & 255}.250/13"),)
        )
        for number in range(devices)
    }
    onlink = [PodRoute(ip_network("10.8.0.0/13"), None, name, number, 2) for number, name in enumerate(links)]
    others = [PodRoute(ip_network(dst), ip_address("10.9.0.1"), "eth0", 0, 4) for dst in destinations(count)]
    return Inside(links, (*onlink, *others))


@reader(128)
def routes_by_as_many_gateways(size: int) -> Read:
    """Each claim by a gateway of its own, of one device."""
    asked, inside = asked_of(size, 1, size), furnished(size, 1)
    return lambda: resolve_routes(asked, inside, NOTHING_KNOWN)


@reader(128)
def routes_by_as_many_devices(size: int) -> Read:
    asked, inside = asked_of(size, size, size), furnished(size, size)
    return lambda: resolve_routes(asked, inside, NOTHING_KNOWN)


class Still:
    """A kernel that changes nothing."""

    protocol = building.OURS

    def converge(self, place: Any, decide: Callable[[Inside], Any]) -> pod_routes.RoutePass:
        """What is wanted, of a pod without devices."""
        list(decide(Inside()))
        return pod_routes.RoutePass(Inside())

    def keep(self, sandboxes: Any) -> None: ...


@reader(150)
def a_report_of_routes(size: int) -> Read:
    """As many Routes as each of ten pods is selected by."""
    passes = Passes(Still(), Rules())
    things = [building.thing(f"r{n}", route=[{"dst": dst, "dev": "eth1"}]) for n, dst in enumerate(destinations(size))]
    pods = {f"u{n}": RoutedPod("ns", f"p{n}", f"u{n}") for n in range(10)}
    passes.learn(known.KnownCluster(tuple(things), pods=pods, has_api=True, complete=True))
    places = [pod_routes.PodNamespace(f"/run/netns/{n}", f"s{n}", 0) for n in range(10)]
    passes.visit([LocatedSandbox(place, "ns", f"p{n}", f"u{n}", "cache") for n, place in enumerate(places)], everything=True)
    assert all(isinstance(each, VisitedSandbox) for each in passes.visited.values())
    return lambda: (uses(passes), describe(passes))


@reader(500)
def what_is_known_of_routes(size: int) -> Read:
    """Pods and Services, written and read again."""
    pods = {f"u{n}": RoutedPod("ns", f"p{n}", f"u{n}") for n in range(size)}
    services = tuple(building.service(f"ns/s{n}", "10.96.0.1") for n in range(size))
    said = known.KnownCluster(pods=pods, services=services, has_api=True)
    return lambda: known.from_json(known.as_json(said))


# -- network/, controller/, base/ ----------------------------------------------------------------------------------------------


def subnet(number: int) -> dict[str, Any]:
    return {"cidrBlock": f"10.{number >> 8}.{number & 255}.0/24", "vlan": "v1"}


@reader(50)
def objects_of_the_cluster(size: int) -> Read:
    """ProviderNetworks, Vlans of one wire, Subnets with the addresses of as many nodes."""
    ranges = [{"node": f"n{n}", "range": "10.0.0.0/28", "address": f"192.0.{n >> 8}.{n & 255}"} for n in range(size)]
    seen = KnownObjects(
        "n1",
        OwnNode({}, {}, ("192.0.2.11",)),
        {f"net{n}": KeptObject("", {"defaultInterface": f"nic{n}"}) for n in range(size)},
        {f"v{n}": KeptObject("", {"id": 7, "provider": "net1"}) for n in range(size)},
        {f"s{n}": KeptObject("", subnet(n), ranges if not n else None) for n in range(size)},
    )
    return lambda: object_specs.read_desired(seen)


@reader(500)
def refused_objects(size: int) -> Read:
    """As many as there are others."""
    refused = {("gateway", f"g{number}"): "why" for number in range(size)}
    networks = object_specs.read_desired(
        KnownObjects(
            "n1",
            OwnNode({}, {}, ()),
            {f"net{n}": KeptObject("", {"defaultInterface": f"nic{n}"}) for n in range(size)},
            {},
            {},
        )
    ).provider_networks
    return lambda: merge_sources([Desired("settings", True, networks), Desired("objects", True, (), (), refused)], {})


@reader(256)
def routes_of_two_gateways(size: int) -> Read:
    one, other = (
        Gateway(
            port=f"gw{n}",
            bridge="br0",
            addresses=(f"10.{n}.0.1/24",),
            routes=tuple(StaticRoute(f"10.{10 * n + (i >> 8)}.{i & 255}.0/24", "192.0.2.1") for i in range(size)),
        )
        for n in (1, 2)
    )
    return lambda: clash(one, other)


@reader(125)
def spans_of_a_subnet(size: int) -> Read:
    """What is left of a network."""
    spec = {"cidrBlock": "10.0.0.0/8", "excludeIps": [f"10.0.{n >> 8}.{n & 255}" for n in range(size)]}

    def read() -> object:
        found = read_subnet("s", spec)
        return list(without(found.cidrs[0], found.excluded))

    return read


@reader(200)
def ranges_of_nodes(size: int) -> Read:
    divided = read_subnet("s", {"cidrBlock": "10.0.0.0/8", "perNodePrefix": 24})
    now = [NodeRange(f"n{n}", f"10.{n >> 8}.{n & 255}.0/24", "192.0.2.1") for n in range(size)]
    nodes = {f"n{n}": "192.0.2.1" for n in range(2 * size)}
    return lambda: divide(divided, now, nodes, nodes.keys(), {})


@reader(50)
def statuses_of_objects(size: int) -> Read:
    """Vlans, Subnets and provider networks."""

    def kept(spec: Mapping[str, Any]) -> controlled.SummedObject:
        return controlled.SummedObject("u", "1", "", spec, {})

    cluster = controlled.ClusterState(
        {f"net{n}": kept({}) for n in range(size)},
        {f"v{n}": kept({"id": n, "provider": f"net{n}"}) for n in range(size)},
        {f"s{n}": kept(subnet(n)) for n in range(size)},
    )
    return lambda: list(summaries(cluster, (), "now"))


# -- kubevirt/, cli/ -----------------------------------------------------------------------------------------------------------


@reader(1000)
def elements_of_a_domain(size: int) -> Read:
    text = "<domain>" + "<a b='c'></a><d/>" * size + "</domain>"
    return lambda: read_document(text)


@reader(1000)
def namespaces_of_an_element(size: int) -> Read:
    """Declared in one start tag."""
    declared = " ".join(f'xmlns:n{number}="u{number}"' for number in range(size))
    text = f"<domain {declared}/>"
    return lambda: read_document(text)


def machine(count: int) -> VirtualMachine:
    """A VM with so many interfaces."""
    networks = {f"net{n}": VmNetwork(f"net{n}", multus=f"nad{n}") for n in range(count)}
    return VirtualMachine("ns", "vm", interfaces=tuple(VmInterface(each, "vhostuser") for each in networks), networks=networks)


@reader(60)
def a_domain_with_devices(size: int) -> Read:
    """As many interfaces to add as other devices are there, MTUs too."""
    devices = "".join(f"<disk><source file='/d{n}'/><alias name='ua-d{n}'/></disk>" for n in range(size))
    other = "xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'"
    override = "".join(f"<qemu:device alias='ua-net{n}'/>" for n in range(size))
    text = f"<domain {other}><vcpu>4</vcpu><devices>{devices}</devices><qemu:override>{override}</qemu:override></domain>"
    vm = machine(size)
    macs = (f"02:00:00:00:{n >> 8:02x}:{n & 255:02x}" for n in range(size))
    found = {f"net{n}": VmSocketSource(f"/var/run/kubevirt/vhostuser/{n}.sock", mac, mtu=1500) for n, mac in enumerate(macs)}

    def read() -> object:
        after = mutate(text, vm, found, Policy("override"))
        return mutate(after, vm, found, Policy("override")), find_missing_networks(after, list(found))

    return read


@reader(120)
def sockets_of_a_vm(size: int) -> Read:
    """The sources of so many interfaces."""
    vm, places = machine(size), SidecarPlaces(podinfo="/none", claims="/none", patience=Patience(0.0))
    return lambda: resolve(vm, "vhostuser", places, 0.0, lambda _: None)


@reader(300)
def a_vmi(size: int) -> Read:
    """Interfaces, networks and annotations."""
    spec = {
        "domain": {"devices": {"interfaces": [{"name": f"net{n}"} for n in range(size)]}},
        "networks": [{"name": f"net{n}", "multus": {"networkName": "x"}} for n in range(size)],
    }
    annotations = {f"key{n}": "x" for n in range(size)}
    text = json.dumps({"metadata": {"namespace": "ns", "name": "vm", "annotations": annotations}, "spec": spec})
    return lambda: read_vmi(text)


@reader(300)
def what_the_sidecar_is_told(size: int) -> Read:
    """Its annotation and network-info."""
    names = [f"net{n}" for n in range(size)]
    specs = json.dumps({name: {"mtu": 1500} for name in names})
    told = json.dumps({"interfaces": [{"network": name, "mac": "02:00:00:00:00:01"} for name in names]})
    return lambda: (read_annotation(specs, set(names)), read_network_info(told))


def manifest_of(count: int, *, networks: int) -> list[dict[str, Any]]:
    """A VM with so many interfaces, and definitions."""
    interfaces = [{"name": f"net{n}", "binding": {"name": "vhostuser"}} for n in range(count)]
    spec = {
        "domain": {"devices": {"interfaces": interfaces}},
        "networks": [{"name": f"net{n}", "multus": {"networkName": f"nad{n}"}} for n in range(count)],
    }
    specs = json.dumps({f"net{n}": {"path": f"/var/run/vhostuser/{n}/s"} for n in range(count)})
    template = {"metadata": {"annotations": {ANNOTATION: specs}}, "spec": spec}
    vm = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"namespace": "ns", "name": "vm"},
        "spec": {"template": template},
    }
    config = json.dumps({"cniVersion": "1.0.0", "type": "userspace", "consumer": "kubevirt", "host": {"colour": 1}})
    return [vm] + [
        {
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": {"namespace": "ns", "name": f"nad{n}"},
            "spec": {"config": config},
        }
        for n in range(networks)
    ]


@reader(100)
def manifests_of_a_vm(size: int) -> Read:
    """A VM with as many interfaces as definitions."""
    content = manifest_of(size, networks=size)

    def read() -> object:
        return list(findings_with_refusals(judge([ManifestDocument("f", each) for each in content])))

    return read


@reader(60)
def manifests_of_many_vms(size: int) -> Read:
    """Each with two interfaces, and a domain."""
    vms = [manifest_of(2, networks=0)[0] | {"metadata": {"namespace": "ns", "name": f"vm{n}"}} for n in range(size)]
    domains = [f"<domain><name>ns_vm{n}</name><devices/></domain>" for n in range(size)]
    return lambda: judge([ManifestDocument("f", each) for each in (*vms, *domains)])


@reader(300)
def containers_of_a_launcher(size: int) -> Read:
    """Hook sidecars of a launcher pod."""
    sidecars = [{"name": f"hook-sidecar-{n}", "image": f"vhostuser:{n}" if n % 2 else "other"} for n in range(size)]
    thing = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "virt-launcher-x", "labels": {"kubevirt.io": "virt-launcher"}},
        "spec": {"containers": [{"name": "compute"}, *sidecars]},
    }
    return lambda: judge([ManifestDocument("f", thing)])


@reader(20)
def a_file_of_networks(size: int) -> Read:
    """YAML of so many definitions, and what ADD says of each."""
    text = "\n---\n".join(map(json.dumps, manifest_of(0, networks=size)))

    def read() -> object:
        judged = JudgedNetworks()
        for number, each in enumerate(_documents("f", text)):
            judge_document(judged, "f", number, each.content)
        return judged

    return read


@reader(300)
def a_network_with_keys_given_twice(size: int) -> Read:
    text = f'{{"type":"userspace","cniVersion":"1.0.0","name":"n",{members(size)},{members(size)}}}'
    judged = JudgedNetworks()
    return lambda: judge_text(judged, Place("f"), text)


@reader(100)
def remarks_on_a_network(size: int) -> Read:
    raw = {"cniVersion": "1.0.0", "name": "n", "type": "userspace", "host": {f"key{n}": 1 for n in range(size)}}
    return lambda: remarks_on(raw)


def an_archive_of(piece: str) -> Callable[[int], Read]:
    """What support makes of a log, and of a file that was put aside."""

    def make(size: int) -> Read:
        text = piece * size
        return lambda: (Redactor().clean(text), known_text(text, Redactor()))

    return make


for _number, _piece in enumerate(
    ("token=", '"', '\\"', "A1b", "-----BEGIN A-----", "--x-", "http://a:", "Basic ", "a.b ", "-eyJabcde", "token=\\")
):
    READERS[f"a log with {_number}"] = an_archive_of(_piece), 20_000


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage collection during a measurement, and no memory from the kernel.

    Existing objects are excluded from it for good, because later rounds would look at all that the tests' modules made. Each
    arena of Python's allocator keeps one object: else it goes back after each reading, and the larger input pays for new pages.
    """
    gc.collect()
    spare = [bytes(100) for _ in range(SPARE)]
    kept = spare[::ONE_OF]
    del spare
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    del kept


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("name", READERS)
def test_reading_takes_linear_time(name: str) -> None:
    """Eight times the input takes less than twenty times the processor time, in one of five tries of three looks.

    On a busy machine a look may be wrong, because the smaller input takes a fraction of a millisecond; a quadratic reader fails
    all tries.
    """
    make, size = READERS[name]
    ratios: list[float] = []
    for _ in range(LOOKS):
        small = min(seconds(make(size)) for _ in range(TRIES))
        for _ in range(TRIES):
            ratios.append(seconds(make(TIMES * size)) / small)
            if ratios[-1] < RATIO_MAX:
                return
    pytest.fail(f"times the processor time: {ratios}")

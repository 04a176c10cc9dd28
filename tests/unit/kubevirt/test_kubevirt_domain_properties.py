"""For any definition: what is not ours is unchanged, and a second run changes nothing.

Generated definitions have quotes, blanks, comments, CDATA, prefixes and namespaces in unusual combinations, but nothing that the
mutator itself writes. So its insertions can be removed by their text, and the rest must be the original bytes.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from kubevirt.domain import Policy, mutate
from kubevirt.sidecar_errors import KubevirtError
from kubevirt.vmi import VmInterface
from tests.unit.kubevirt.domains import PLAIN, QEMU, mutated, ours, source, sources, vm

MACHINE = vm(VmInterface("net1", "vhostuser"), VmInterface("net2", "vhostuser", boot_order=3), multiqueue=True)
SOURCES = sources(MACHINE, mtu=1500)
POLICIES = st.sampled_from([Policy(), Policy("element"), Policy("override")])

INSERTED = (
    re.compile(r"\s*<interface type='vhostuser'>(?:(?!</interface>).)*</interface>", re.DOTALL),
    re.compile(r"\s*<memoryBacking>\s*<source type='memfd'/>\s*<access mode='shared'/>\s*</memoryBacking>"),
    re.compile(r"\s*<source type='memfd'/>"),
    re.compile(r"\s*<access mode='shared'/>"),
    re.compile(r"\s*<\w+:override>(?:(?!</\w+:override>).)*</\w+:override>", re.DOTALL),
    re.compile(r" xmlns:qemu='[^']*'"),
)
EMPTIED = re.compile(r"<(devices|memoryBacking)([^<>]*)>\s*</\1>")
"""An element that was empty before: it closed itself, or had its end tag at once."""

BLANKS = st.sampled_from(["", " ", "\n", "\n  ", "\r\n\t", "\n\n    ", "\t "])
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cn", "Cs", "Co"]), max_size=6)
NAMES = st.sampled_from(["disk", "hostdev", "tpm", "kubevirt:thing", "q:args", "x-y", "_z", "é"])


def quoted(value: str, quote: str) -> str:
    """An attribute's value in single or double quotes, escaped as little as XML allows."""
    return quote + value.replace("&", "&amp;").replace("<", "&lt;").replace(quote, f"&#{ord(quote)};") + quote


@st.composite
def start_tags(draw: st.DrawFn, name: str) -> str:
    """A start tag without its end. Its attributes are written in unusual ways."""
    names = draw(st.lists(st.sampled_from(["type", "a", "q:b", "xml:lang", "c"]), unique=True, max_size=3))
    pieces = [
        f"{draw(BLANKS) or ' '}{each}{draw(BLANKS)}={draw(BLANKS)}" + quoted(draw(TEXT), draw(st.sampled_from("'\"")))
        for each in names
    ]
    return f"<{name}{''.join(pieces)}{draw(BLANKS)}"


@st.composite
def nodes(draw: st.DrawFn, depth: int = 2) -> str:
    """An element, comment or CDATA section that is not ours."""
    kind = draw(st.sampled_from(["element", "empty", "comment", "cdata", "metadata", "interface"]))
    if kind == "comment":
        return f"<!--{draw(TEXT).replace('-', '')} <devices> -->"
    if kind == "cdata":
        return f'<![CDATA[{draw(TEXT).replace("]", "")}<interface type="vhostuser">]]>'
    if kind == "metadata":
        inner = f'<uid>{draw(st.integers(0, 9))}</uid><devices x="y"/>'
        return f'<metadata><kubevirt xmlns="http://kubevirt.io">{inner}</kubevirt></metadata>'
    if kind == "interface":
        other = draw(st.sampled_from(["ethernet", "vhostuser", "bridge"]))
        return f'<interface type="{other}"{draw(BLANKS)}><alias name="ua-other{draw(st.integers(0, 9))}"/></interface>'
    name = draw(NAMES)
    tag = draw(start_tags(name))
    if kind == "empty" or not depth:
        return f"{tag}/>"
    inner = "".join(draw(BLANKS) + each for each in draw(st.lists(nodes(depth - 1), max_size=2)))
    return f"{tag}>{draw(TEXT).translate(str.maketrans('', '', '<&>'))}{inner}{draw(BLANKS)}</{name}{draw(BLANKS)}>"


BACKINGS = st.sampled_from(
    [
        "",
        "<memoryBacking />",
        '<memoryBacking a = "b" ><hugepages/></memoryBacking >',
        "<memoryBacking>\n\t<hugepages>\n\t\t<page size='2048'/></hugepages><source type=\"memfd\" />\n</memoryBacking>",
        "<memoryBacking> <!-- <access/> --> </memoryBacking>",
        '<memoryBacking><source type="memfd"></source><access mode="shared"></access></memoryBacking>',
    ]
)
DEVICES = st.lists(nodes(), max_size=4)
PROLOGS = st.sampled_from(
    ["", "\ufeff", "<?xml version='1.0' encoding='UTF-8'?>\n", '<?xml version="1.0"?><!-- <domain> -->\n\n']
)
ROOTS = st.sampled_from(
    [
        "<domain xmlns:kubevirt='http://kubevirt.io' xmlns:q='urn:q'>",
        f'<domain type="kvm"\n  xmlns:q="{QEMU[1:-1]}" xmlns:kubevirt="u">',
    ]
)


@st.composite
def definitions(draw: st.DrawFn) -> str:
    """A definition with nothing of ours in it."""
    around = st.lists(nodes().filter(lambda text: not text.startswith("<![CDATA[")), max_size=3)
    devices = "".join(draw(BLANKS) + each for each in draw(DEVICES))
    body = [
        *draw(around),
        '<memory unit="b">8388608</memory>',
        draw(BACKINGS),
        *draw(around),
        draw(st.sampled_from(["<vcpu>3</vcpu>", "<vcpu><![CDATA[2]]></vcpu>"])),
        draw(st.sampled_from(["<devices />", "<devices></devices>"]))
        if not devices
        else f"<devices>{devices}{draw(BLANKS) or ' '}</devices>",
        *draw(around),
    ]
    return (
        draw(PROLOGS) + draw(ROOTS) + "".join(draw(BLANKS) + each for each in body) + draw(BLANKS) + "</domain >" + draw(BLANKS)
    )


def without_ours(domain: str, before: str) -> str:
    """The definition without our insertions. A tag that closed itself before does so again."""
    for pattern in INSERTED:
        domain = pattern.sub("", domain)
    return EMPTIED.sub(
        lambda found: each if (each := f"<{found[1]}{found[2]}/>") in before else f"<{found[1]}{found[2]}></{found[1]}>", domain
    )


@given(definitions(), POLICIES)
def test_all_that_is_not_ours_keeps_every_byte(domain: str, policy: Policy) -> None:
    """Without our insertions the definition is what it was, with all elements, comments, CDATA, namespaces, quotes and blanks."""
    assert without_ours(domain, domain) == domain
    after = mutated(domain, MACHINE, SOURCES, policy)
    assert without_ours(after, domain) == domain


@given(definitions(), POLICIES)
def test_what_comes_out_has_what_was_asked_for(domain: str, policy: Policy) -> None:
    """Another parser finds both interfaces in order, shared memory, and the number of queues."""
    after = mutated(domain, MACHINE, SOURCES, policy).encode()
    root = ET.fromstring(after)
    aliases = [each.get("name") for each in root.findall("./devices/interface[@type='vhostuser']/alias")]
    assert [name for name in aliases if name in {"ua-net1", "ua-net2"}] == ["ua-net1", "ua-net2"]
    assert [each.get("mode") for each in root.findall("./memoryBacking/access")] == ["shared"]
    assert ours(after.decode(), "net2")["driver"]["queues"] == "".join(root.findall("vcpu")[0].itertext())
    assert len(list(root.iter(f"{QEMU}property"))) == (2 if policy.mtu == "override" else 0)


CHANGES = st.fixed_dictionaries(
    {
        "order": st.randoms(use_true_random=False),
        "target": st.booleans(),
        "address": st.booleans(),
        "unknown": st.booleans(),
        "hex": st.booleans(),
    }
)


@given(CHANGES, st.integers(1, 4), st.sampled_from([None, 256, 1024]))
def test_what_libvirt_would_write_of_ours_is_not_written_again(changes: dict[str, Any], queues: int, ring: int | None) -> None:
    """Children in another order, a target, an address or an unknown element change nothing: the interface is as desired."""
    found = {"net1": source(queues=queues, rx_queue_size=ring)}
    machine = vm(VmInterface("net1", "vhostuser", acpi_index=10))
    root = ET.fromstring(mutated(PLAIN, machine, found))
    (interface,) = root.findall("./devices/interface")
    if changes["target"]:
        interface.append(ET.Element("target", {"dev": ""}))
    if changes["address"]:
        interface.append(
            ET.Element("address", {"type": "pci", "domain": "0x0000", "bus": "0x04", "slot": "0x00", "function": "0x0"})
        )
    if changes["unknown"]:
        interface.append(ET.Element("future", {"a": "b"}))
    if changes["hex"]:
        (acpi,) = interface.findall("acpi")
        acpi.set("index", "0x0a")
    changes["order"].shuffle(interface)
    rewritten = ET.tostring(root, encoding="unicode")
    assert mutate(rewritten, machine, found) == rewritten


@settings(max_examples=100)
@given(st.data(), POLICIES)
def test_a_damaged_definition_is_refused_or_mutated(data: st.DataObject, policy: Policy) -> None:
    """A definition that is cut, doubled or replaced anywhere gives a document or a reason, and raises nothing else."""
    domain = mutated(PLAIN, MACHINE, SOURCES, Policy("override")) if data.draw(st.booleans()) else data.draw(definitions())
    at = sorted(data.draw(st.lists(st.integers(0, len(domain)), min_size=2, max_size=2)))
    middle = data.draw(st.sampled_from(["", domain[at[0] : at[1]] * 2]) | st.text(alphabet="<>/='\"&;! \0\ud800a", max_size=4))
    with suppress(KubevirtError):
        ET.fromstring(mutate(domain[: at[0]] + middle + domain[at[1] :], MACHINE, SOURCES, policy).encode())

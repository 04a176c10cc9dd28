"""Whether a node has the huge pages that its switch needs, now and after a boot, and can map them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from userspace_cni.base.findings import Finding
from userspace_cni.fastpath.memory.hugepages import HugepagePool, HugetlbMount, format_size, read_socket_mem
from userspace_cni.node.dpdk_plan import SYSCTL_FILE
from userspace_cni.node.node_facts import NodeFacts

WHERE: Final = "huge pages"
_USUAL: Final = 1 << 30
"""Bytes for a switch that does not say what it wants: enough for the buffers of MTU 1500 (docs/ovs-dpdk.md)."""
NR_HUGEPAGES: Final = "/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/nr_hugepages"


def judge_node_pages(facts: NodeFacts) -> Iterator[Finding]:
    """What the switch lacks. A node without OVS-DPDK, or one that was started without huge pages, lacks none."""
    config = facts.switch.other_config if facts.switch else {}
    if "--no-huge" in config.get("dpdk-extra", "") or (facts.switch and config.get("dpdk-init") not in ("true", "try")):
        return
    wanted = read_socket_mem(config.get("dpdk-socket-mem", ""))
    if facts.pages is None:
        return
    pools = [pool for pool in facts.pages.list_pools() if pool.total]
    if not pools:
        number = -(-(sum(wanted) or _USUAL) // facts.default_bytes)
        message, why = "none are reserved", "ovs-vswitchd does not start with DPDK, and no DPDK application or VM does"
        yield Finding("hugepages-none", "error", WHERE, message, f"sysctl -w vm.nr_hugepages={number}", why=why)
        return
    yield from _judge_nodes(facts, pools, wanted)
    yield from _judge_mounts(facts, facts.pages.mounts, pools)
    yield from _judge_boot(facts, pools)


def describe_pages(facts: NodeFacts) -> str:
    """`608 of 2 MiB on node 0, 608 free`, for each pool with pages."""
    return "; ".join(
        f"{pool.total} of {format_size(pool.page_bytes)}{_on(pool.node)}, {pool.free} free"
        for pool in (facts.pages.list_pools() if facts.pages else ())
        if pool.total
    )


def _judge_nodes(facts: NodeFacts, pools: list[HugepagePool], wanted: list[int]) -> Iterator[Finding]:
    for node, amount in enumerate(wanted):
        mine = [pool for pool in pools if pool.node in (None, node)]
        there = sum(pool.total * pool.page_bytes for pool in mine)
        if there < amount:
            message = (
                f"node {node} has {format_size(there)}, and ovs-vswitchd asks for {format_size(amount)} there when it starts"
            )
            number, kib = -(-amount // facts.default_bytes), facts.default_bytes >> 10
            other = sum(pool.total * pool.page_bytes for pool in mine if pool.page_bytes != facts.default_bytes)
            number = max(1, number - other // facts.default_bytes)
            remedy = f"echo {number} > {NR_HUGEPAGES.format(node=node, kib=kib)}"
            why = "it ends at its next start with 'Not enough memory available on socket', and all its ports are down"
            yield Finding("hugepages-short", "error", WHERE, message, remedy, f"node {node}", why)
        elif mine and not any(pool.available for pool in mine):
            message = f"all{_on(node)} are taken: no further DPDK application or VM starts there"
            remedy = "reserve more, or move pods with huge pages away"
            yield Finding("hugepages-taken", "note", WHERE, message, remedy, f"node {node}")
    if facts.processors and facts.switch and any(wanted):
        polled = [node for node, cpus in facts.processors.nodes.items() if cpus & facts.polled]
        for node in polled:
            if node >= len(wanted) or not wanted[node]:
                amounts = [
                    str((wanted[each] if each < len(wanted) else 0) >> 20 or 1024) for each in sorted(facts.processors.nodes)
                ]
                message = f"polling threads run on node {node}, and other_config:dpdk-socket-mem takes nothing there"
                remedy = f"ovs-vsctl set Open_vSwitch . other_config:dpdk-socket-mem={','.join(amounts)}"
                why = "ports of that node find no buffers, or get them from the other node, at a third of the speed"
                yield Finding("socket-mem-node", "warning", WHERE, message, remedy, "dpdk-socket-mem", why)


def _judge_mounts(facts: NodeFacts, every: Sequence[HugetlbMount], pools: list[HugepagePool]) -> Iterator[Finding]:
    config = facts.switch.other_config if facts.switch else {}
    by_files = "dpdk-hugepage-dir" if "dpdk-hugepage-dir" in config else ""
    by_files = "--legacy-mem of dpdk-extra" if "--legacy-mem" in config.get("dpdk-extra", "") else by_files
    for size in sorted({pool.page_bytes for pool in pools}):
        mounts = [mount for mount in every if mount.page_bytes in (None, size)]
        if any(mount.writable for mount in mounts):
            continue
        where = f"/dev/hugepages-{size >> 20}M" if size != facts.default_bytes else "/dev/hugepages"
        if mounts:
            message = f"hugetlbfs is mounted read-only at {', '.join(mount.path for mount in mounts)}"
            remedy = f"mount -o remount,rw {mounts[0].path}"
        else:
            message = f"pages of {format_size(size)} are reserved, and no hugetlbfs is mounted for them"
            remedy = f"mkdir -p {where} && mount -t hugetlbfs -o pagesize={size >> 20}M hugetlbfs {where}"
        if by_files:
            why = f"ovs-vswitchd needs it, by {by_files}: DPDK does not start again without"
            yield Finding("hugetlbfs-missing", "error", WHERE, message, remedy, format_size(size), why)
        else:
            why = "ovs-vswitchd and pods need none; DPDK applications and VMs that the node itself runs do"
            yield Finding("hugetlbfs-missing", "note", WHERE, message, remedy, format_size(size), why)


def _judge_boot(facts: NodeFacts, pools: list[HugepagePool]) -> Iterator[Finding]:
    if facts.boot_pages is None:
        return
    now = sum(pool.total * pool.page_bytes for pool in pools)
    later = sum(number * size for (_, size), number in facts.boot_pages.items())
    if later >= now:
        return
    number = -(-now // facts.default_bytes)
    message = f"{format_size(now)} are reserved now; kernel command line, sysctl.d and tmpfiles.d reserve "
    message += f"{format_size(later)} at the next boot" if later else "none at the next boot"
    remedy = f"echo vm.nr_hugepages={number} > {SYSCTL_FILE}"
    why = "after a boot ovs-vswitchd and pods lack them, unless another program of this node reserves them"
    yield Finding("hugepages-not-kept", "warning", WHERE, message, remedy, "boot", why)


def _on(node: int | None) -> str:
    return "" if node is None else f" on node {node}"

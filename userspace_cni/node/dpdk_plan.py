"""Which commands a node needs to run OVS-DPDK, from what it has: each with its reason, none for what is there. Pure.

Each command sets what it sets whatever was before, so a run that dies is simply run again. None takes anything from what runs:
pages are only added, and of free memory; CPUs that pods have are not chosen; options that are set stay, unless other values are
asked for by name; and a restart of ovs-vswitchd, which stops all traffic, is a command of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.base.cpu_sets import as_list, as_mask, read_mask
from userspace_cni.fastpath.memory.hugepages import format_size, read_socket_mem
from userspace_cni.node.dpdk_facts import WITH_DPDK, DpdkFacts

SYSCTL_FILE: Final = "/etc/sysctl.d/99-userspace-cni-hugepages.conf"
TMPFILES_FILE: Final = "/etc/tmpfiles.d/99-userspace-cni-hugepages.conf"
_POOL: Final = "/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/nr_hugepages"
_MACHINE_POOL: Final = "/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"
_USUAL: Final = 1 << 30
"""For the switch: the 262144 buffers that ports of MTU 1500 share on a NUMA node take 752 MiB of it."""
_LEAST: Final = 128 << 20
_MOST_SHARE: Final = 4
"""By default neither the switch nor the applications get more than this part of a node's memory."""
_WAIT_S: Final = 60
"""For ovs-vswitchd to have done what options say: a start of DPDK takes seconds."""
_PACKAGE: Final = "openvswitch-switch-dpdk"


class SetupRefused(Exception):
    """Why this cannot be set up here, and what to do."""


@dataclass(frozen=True)
class SetupWishes:
    """What was asked for by name; None for what is to be derived from the machine. `memory` and `pod_memory`: bytes on each NUMA
    node, for the switch and for applications."""

    memory: int | None = None
    pod_memory: int | None = None
    cpus: frozenset[int] | None = None
    page_bytes: int | None = None


@dataclass(frozen=True)
class SetupStep:
    """Something that is missing, why it is needed, and the commands that make it.

    `stops_traffic`: while they run no port moves frames. `is_package`: they install programs, which may start or restart some.
    """

    name: str
    why: str
    commands: tuple[str, ...]
    stops_traffic: bool = False
    is_package: bool = False


@dataclass(frozen=True)
class SetupPlan:
    """`reasons`: what was chosen, and why. `steps`: in their order; `restart`: a step that has its own time."""

    reasons: tuple[str, ...]
    steps: tuple[SetupStep, ...]
    restart: SetupStep | None


@dataclass(frozen=True)
class _Amounts:
    """Bytes on each NUMA node: of the switch, and of all huge pages."""

    switch: Mapping[int, int] = field(default_factory=dict)
    together: Mapping[int, int] = field(default_factory=dict)


def plan_dpdk(facts: DpdkFacts, wishes: SetupWishes) -> SetupPlan:
    """What is to be done. Raises SetupRefused."""
    sizes = sorted(pool.page_bytes for pool in facts.pages.machine)
    if wishes.page_bytes and wishes.page_bytes not in sizes:
        has = ", ".join(map(format_size, sizes)) or "none"
        raise SetupRefused(f"--page-size: the kernel has no huge pages of {format_size(wishes.page_bytes)}, but of {has}")
    cpus, why_cpus = _choose_cpus(facts, wishes)
    nodes = sorted(node for node, of_node in facts.processors.nodes.items() if of_node & cpus)
    amounts, why_memory = _choose_memory(facts, wishes, nodes)
    options = _choose_options(facts, wishes, cpus, amounts)
    steps = [
        *_plan_package(facts),
        *_plan_pages(facts, wishes, amounts),
        *_plan_mount(facts, wishes),
        *_plan_alternative(facts),
        *_plan_start(facts),
        *_plan_options(facts, wishes, options),
    ]
    return SetupPlan((why_cpus, *why_memory), tuple(steps), _plan_restart(facts, options))


# -- what is chosen ----------------------------------------------------------------------------------------------------------


def _choose_cpus(facts: DpdkFacts, wishes: SetupWishes) -> tuple[frozenset[int], str]:
    processors = facts.processors
    given = processors.kubelet.given if processors.kubelet else frozenset()
    if wishes.cpus is not None:
        if absent := wishes.cpus - processors.online:
            raise SetupRefused(f"--pmd-cpus: there is no CPU {as_list(absent)}; online are {as_list(processors.online)}")
        if taken := wishes.cpus & given:
            raise SetupRefused(f"--pmd-cpus: the kubelet has given CPU {as_list(taken)} to a pod: move that pod away first")
        return wishes.cpus, f"CPU {as_list(wishes.cpus)} for polling threads: --pmd-cpus"
    former = read_mask(facts.other_config.get("pmd-cpu-mask", ""))
    if former and former & processors.online:
        return former & processors.online, f"CPU {as_list(former & processors.online)} for polling threads: pmd-cpu-mask has them"
    if isolated := processors.isolated - given:
        return isolated, f"CPU {as_list(isolated)} for polling threads: isolated by the kernel's command line"
    chosen = {
        max(free) for cpus in processors.nodes.values() if (free := cpus & processors.online - given - {min(processors.online)})
    }
    if not chosen:
        raise SetupRefused("no CPU is free: a polling thread takes a whole one; --pmd-cpus names one that it may take")
    how = "the highest CPU" if len(chosen) == 1 else "the highest CPU of each NUMA node"
    return frozenset(chosen), f"CPU {as_list(chosen)} for polling threads: {how}; --pmd-cpus chooses others"


def _choose_memory(facts: DpdkFacts, wishes: SetupWishes, nodes: list[int]) -> tuple[_Amounts, list[str]]:
    """The amounts, in whole pages, on the nodes with polling threads, and why."""
    page = wishes.page_bytes or facts.default_bytes
    former = read_socket_mem(facts.other_config.get("dpdk-socket-mem", "").strip('"'))
    switch, together, reasons = {}, {}, []
    for node in nodes:
        usual = _usual_amount(facts.memory[node].total if node in facts.memory else 0)
        has = former[node] if node < len(former) else 0
        switch[node] = _whole(wishes.memory or has or usual, page)
        there = sum(pool.total * pool.page_bytes for pool in facts.pages.list_pools() if pool.node in (None, node))
        of_pods = wishes.pod_memory if wishes.pod_memory is not None else max(0, there - switch[node]) or usual
        together[node] = switch[node] + _whole(of_pods, page)
        how = "--memory" if wishes.memory else "dpdk-socket-mem has it" if has else _why_usual(usual)
        of_others = (
            "--pod-memory" if wishes.pod_memory is not None else "are there already" if there > switch[node] else "as much again"
        )
        rest = format_size(together[node] - switch[node])
        reasons.append(f"node {node}: {format_size(switch[node])} for the switch ({how}), {rest} for applications ({of_others})")
    return _Amounts(switch, together), reasons


def _usual_amount(memory: int) -> int:
    amount = _USUAL
    while amount > _LEAST and memory and amount * _MOST_SHARE > memory:
        amount //= 2
    return amount


def _why_usual(amount: int) -> str:
    if amount == _USUAL:
        return "enough for all buffers at MTU 1500; --memory changes it"
    return "a quarter of the node's memory at most; --memory changes it"


def _whole(amount: int, page: int) -> int:
    return -(-amount // page) * page


def _choose_options(facts: DpdkFacts, wishes: SetupWishes, cpus: frozenset[int], amounts: _Amounts) -> dict[str, str]:
    """The options of other_config that are to be set: those that are missing, and those that were asked for and differ."""
    has = facts.other_config
    highest = max(amounts.switch, default=0)
    memory = ",".join(str(amounts.switch.get(node, 0) >> 20) for node in range(highest + 1))
    found: dict[str, str] = {}
    if not has.get("pmd-cpu-mask") or (wishes.cpus is not None and read_mask(has["pmd-cpu-mask"]) != wishes.cpus):
        found["pmd-cpu-mask"] = as_mask(cpus)
    if not has.get("dpdk-socket-mem") or (wishes.memory and has["dpdk-socket-mem"].strip('"') != memory):
        found["dpdk-socket-mem"] = memory
        found |= {"dpdk-socket-limit": memory} if has.get("dpdk-socket-limit", "").strip('"') != memory else {}
    if facts.socket_dir and has.get("vhost-sock-dir") != facts.socket_dir:
        found["vhost-sock-dir"] = facts.socket_dir
    if has.get("dpdk-init") not in ("true", "try"):  # the last: where DPDK is built in it starts with what is set by then
        found["dpdk-init"] = "true"
    return found


# -- steps -------------------------------------------------------------------------------------------------------------------


def _plan_package(facts: DpdkFacts) -> Iterator[SetupStep]:
    if facts.packages.with_dpdk or facts.dpdk_version or facts.dpdk:
        return
    if facts.packages.debian:
        why = f"package {_PACKAGE} is not installed"
        yield SetupStep("package", why, (f"apt-get install -y {_PACKAGE}",), is_package=True)
    elif not facts.packages.installed:
        raise SetupRefused("there is no Open vSwitch: install the one of your distribution that is built with DPDK")


def _plan_pages(facts: DpdkFacts, wishes: SetupWishes, amounts: _Amounts) -> Iterator[SetupStep]:
    """Pages now, and at boot. Those that are there stay, of whatever size."""
    page = wishes.page_bytes or facts.default_bytes
    now: dict[int, int] = {}
    commands = []
    for node, wanted in amounts.together.items():
        pools = [pool for pool in facts.pages.list_pools() if pool.node in (None, node)]
        there = sum(pool.total for pool in pools if pool.page_bytes == page)
        others = sum(pool.total * pool.page_bytes for pool in pools if pool.page_bytes != page)
        now[node] = max(there, -(-max(0, wanted - others) // page))
        if now[node] > there:
            _require_memory(facts, node, (now[node] - there) * page)
            commands.append(f"echo {now[node]} > {_pool(facts, node, page)}")
    if commands:
        yield SetupStep("huge pages now", "fewer are reserved than switch and applications need", tuple(commands))
    spread = facts.boot_pages.get((None, page), 0) // max(1, len(facts.processors.nodes))
    if any(facts.boot_pages.get((node, page), spread) < number for node, number in now.items()):
        why = "the next boot would reserve fewer; remove the file to have that again"
        yield SetupStep("huge pages at boot", why, _keep(facts, page, now))


def _keep(facts: DpdkFacts, page: int, now: Mapping[int, int]) -> tuple[str, ...]:
    """A sysctl, which every init reads, says how many there are on all nodes; a line of tmpfiles.d(5) is about one of them."""
    nodes = len(facts.processors.nodes)
    if page == facts.default_bytes and (nodes == 1 or not facts.packages.systemd):
        return (f"echo vm.nr_hugepages={max(now.values()) * nodes} > {SYSCTL_FILE}",)
    if not facts.packages.systemd:
        raise SetupRefused(
            f"without systemd pages of {format_size(page)} are reserved by the kernel's command line: "
            f"hugepagesz={page >> 20}M hugepages={max(now.values()) * nodes}; boot with it, and run this again"
        )
    lines = (f"w {_pool(facts, node, page)} - - - - {number}" for node, number in sorted(now.items()))
    return (f"printf '%s\\n' {' '.join(repr(line) for line in lines)} > {TMPFILES_FILE}",)


def _pool(facts: DpdkFacts, node: int, page: int) -> str:
    """The file with the number of pages of a node; of the machine where the kernel shows no nodes."""
    return (_POOL if facts.pages.nodes else _MACHINE_POOL).format(node=node, kib=page >> 10)


def _require_memory(facts: DpdkFacts, node: int, more: int) -> None:
    available = facts.memory[node].available if node in facts.memory else more
    if more > available:
        raise SetupRefused(
            f"node {node} has {format_size(available >> 20 << 20)} of memory to spare, and {format_size(more)} of huge pages are "
            "missing: they would be taken from what runs there; ask for fewer by --memory and --pod-memory, or free memory"
        )


def _plan_mount(facts: DpdkFacts, wishes: SetupWishes) -> Iterator[SetupStep]:
    page = wishes.page_bytes or facts.default_bytes
    where = "/dev/hugepages" if page == facts.default_bytes else f"/dev/hugepages-{page >> 20}M"
    options = f"pagesize={page >> 20}M"
    if not any(mount.writable and mount.page_bytes in (None, page) for mount in facts.pages.mounts):
        why = "no hugetlbfs is mounted: DPDK applications and VMs of the node itself take pages by files in it"
        yield SetupStep("hugetlbfs", why, (f"mkdir -p {where} && mount -t hugetlbfs -o {options} hugetlbfs {where}",))
    if where not in facts.packages.kept_mounts and not (facts.packages.systemd and page == facts.default_bytes):
        line = f"hugetlbfs {where} hugetlbfs {options} 0 0"
        yield SetupStep("hugetlbfs at boot", "nothing mounts it at boot", (f"mkdir -p {where} && echo '{line}' >> /etc/fstab",))


def _plan_alternative(facts: DpdkFacts) -> Iterator[SetupStep]:
    packages = facts.packages
    if packages.debian and packages.chosen != WITH_DPDK and not facts.dpdk_version:
        why = f"{packages.chosen or 'the daemon without DPDK'} is started otherwise"
        yield SetupStep("program", why, (f"update-alternatives --set ovs-vswitchd {WITH_DPDK}",))


def _plan_start(facts: DpdkFacts) -> Iterator[SetupStep]:
    if facts.away:
        yield SetupStep("service", f"the database does not answer ({facts.away})", (_service(facts, "start"),))


def _plan_options(facts: DpdkFacts, wishes: SetupWishes, options: Mapping[str, str]) -> Iterator[SetupStep]:
    """Where the database gives no answer it is not known which options it has: those that it turns out to have are left alone."""
    if not options:
        return
    has = [f"{name} is {facts.other_config[name]}" for name in options if name in facts.other_config]
    why = f"they are not as chosen: {', '.join(has)}" if has else "they are not set"
    why += "; DPDK starts at once, and ovs-vswitchd ends if it cannot" if facts.dpdk_version and not facts.dpdk else ""
    waits = f"--timeout={_WAIT_S}" if facts.runs or facts.away else "--no-wait"
    vsctl = f"ovs-vsctl {waits}" + (f" --db={facts.database}" if facts.database else "")
    by_name = {"pmd-cpu-mask": wishes.cpus is not None, "dpdk-socket-mem": wishes.memory, "dpdk-socket-limit": wishes.memory}
    sets = [name for name in options if not facts.away or by_name.get(name)]
    pairs = " ".join(f'other_config:{name}="{options[name]}"' for name in sets)
    commands = [f"{vsctl} set Open_vSwitch . {pairs}"] if sets else []
    if unknown := [f"{name}={options[name]}" for name in options if name not in sets]:
        found = f"{vsctl} get Open_vSwitch . other_config:${{option%%=*}} > /dev/null 2>&1"
        set_one = f'{vsctl} set Open_vSwitch . other_config:"$option"'
        commands.append(f"for option in {' '.join(unknown)}; do {found} || {set_one}; done")
    yield SetupStep("options", why, tuple(commands))


def _plan_restart(facts: DpdkFacts, options: Mapping[str, str]) -> SetupStep | None:
    """Where DPDK is built in, dpdk-init takes effect at once; its other options, and another program, at a restart."""
    if facts.dpdk:
        changed = sorted(name for name in options if name.startswith("dpdk-"))
        why = f"{', '.join(changed)} take{'s' if len(changed) == 1 else ''} effect at a restart" if changed else ""
    elif facts.runs and not facts.away and not facts.dpdk_version:
        why = "the ovs-vswitchd that runs is built without DPDK"
    else:
        why = ""
    if not why:
        return None
    cost = "no port of this node moves frames meanwhile, for some seconds"
    ports = f"; {facts.attached} attachment{'' if facts.attached == 1 else 's'} of pods here" if facts.attached else ""
    return SetupStep("restart", f"{why}; {cost}{ports}", (_service(facts, "restart"),), stops_traffic=True)


def _service(facts: DpdkFacts, verb: str) -> str:
    service = facts.packages.service
    return f"systemctl {verb} {service}" if facts.packages.systemd else f"service {service} {verb}"

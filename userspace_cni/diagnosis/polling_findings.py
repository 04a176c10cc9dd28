"""Whether DPDK runs as it should, and whether its polling threads have their processors for themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from userspace_cni.base.cpu_sets import as_list, as_mask, read_mask
from userspace_cni.base.findings import Finding, Severity
from userspace_cni.node.node_facts import CpuUser, NodeFacts, Processors, SwitchReport

DPDK: Final = "DPDK"
WHERE: Final = "polling threads"
_SET: Final = "ovs-vsctl set Open_vSwitch . other_config:"
_WITH_DPDK: Final = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
_SLEEPS: Final = ("pmd-sleep-max", "pmd-maxsleep")
_LOSES: Final = "what runs on the processor of a polling thread takes it away from frames, which are lost meanwhile"
_USERS_MAX: Final = 20
_SWITCH: Final = "ovs-vswitchd"
_FULL: Final = 0.95
"""Of its time, from which on a polling thread has nothing left."""
_NAMED: Final = 5


def judge_dpdk(facts: NodeFacts) -> Iterator[Finding]:
    """DPDK in the switch: whether it runs, and options that cannot be meant."""
    switch = facts.switch
    if switch is None:
        return
    config = switch.other_config
    if not switch.dpdk:
        yield _without_dpdk(switch)
        return
    if "--no-pci" in config.get("dpdk-extra", "").split() and "dpdk" in switch.kinds:
        message = "other_config:dpdk-extra has --no-pci, and there are ports of type dpdk: DPDK opens no PCI device"
        remedy = "ovs-vsctl remove Open_vSwitch . other_config dpdk-extra, and restart ovs-vswitchd when traffic may stop"
        yield Finding("dpdk-no-pci", "warning", DPDK, message, remedy, "dpdk-extra")
    if config.get("dpdk-socket-mem") and not config.get("dpdk-socket-limit"):
        message = "other_config:dpdk-socket-limit is not set: ovs-vswitchd takes more than dpdk-socket-mem when ports need it"
        remedy = f"{_SET}dpdk-socket-limit={config['dpdk-socket-mem'].strip(chr(34))}, if pods need the other pages"
        yield Finding("dpdk-socket-limit", "note", DPDK, message, remedy, "dpdk-socket-limit")
    for name in _SLEEPS:
        if config.get(name, "0").isdecimal() and int(config.get(name, "0")[:9]):
            message = f"other_config:{name} is {config[name]}: idle polling threads sleep up to that many microseconds"
            remedy = f"ovs-vsctl remove Open_vSwitch . other_config {name}"
            yield Finding("pmd-sleeps", "note", DPDK, message, remedy, name, "it saves power and costs latency")


def _without_dpdk(switch: SwitchReport) -> Finding:
    why = "no vhost-user port and no bridge of datapath_type netdev with DPDK's speed can be had"
    if switch.version and not switch.dpdk_version:
        message = f"{switch.version} is built without DPDK"
        remedy = f"update-alternatives --set ovs-vswitchd {_WITH_DPDK} && service openvswitch-switch restart"
        return Finding("dpdk-not-built", "error", DPDK, message, remedy, "ovs-vswitchd", why)
    if switch.other_config.get("dpdk-init") not in ("true", "try"):
        message = "other_config:dpdk-init is not true: ovs-vswitchd runs without DPDK"
        return Finding("dpdk-off", "error", DPDK, message, f"{_SET}dpdk-init=true", "dpdk-init", why)
    message = "other_config:dpdk-init is set, and ovs-vswitchd has not started DPDK"
    remedy = "look for EAL in the log of ovs-vswitchd (/var/log/openvswitch/ovs-vswitchd.log), and restart it"
    return Finding("dpdk-failed", "error", DPDK, message, remedy, "dpdk-init", why)


def judge_polling(facts: NodeFacts) -> Iterator[Finding]:
    """The processors of polling threads: which they are, and who else runs there."""
    if facts.switch is None or not facts.switch.dpdk or facts.processors is None:
        return
    yield from _judge_masks(facts.switch, facts.processors)
    polled = facts.polled & facts.processors.online
    if polled:
        yield from _judge_isolation(polled, facts.processors)
        yield from _judge_kubelet(polled, facts.processors)
        yield from _judge_speed(polled, facts.processors)
        yield from _judge_use(facts, polled, facts.processors)


def judge_load(facts: NodeFacts) -> Iterator[Finding]:
    """How busy the polling threads are, and ports that none of them polls."""
    if facts.polling is None or facts.switch is None:
        return
    for thread in facts.polling.threads:
        load = thread.recent_load
        if load is not None and load >= _FULL:
            ports = sorted({queue.port for queue in thread.queues})
            message = f"the polling thread on CPU {thread.core} works {load:.0%} of its time, for {', '.join(ports[:_NAMED])}"
            wider = (facts.polled | _next_cpu(facts)) if facts.processors else facts.polled
            remedy = f"{_SET}pmd-cpu-mask={as_mask(wider)}" if wider != facts.polled else ""
            remedy = f"{remedy or 'give the machine more CPUs'}; or ovs-appctl dpif-netdev/pmd-rxq-rebalance"
            why = "at more traffic it drops frames of all its ports"
            yield Finding("pmd-saturated", "warning", WHERE, message, remedy, f"CPU {thread.core}", why)
    nodes = {thread.numa for thread in facts.polling.threads}
    polled = {queue.port for thread in facts.polling.threads for queue in thread.queues}
    for port, node in sorted(facts.switch.polled_ports.items()):
        if node is None or not nodes:
            continue
        if port not in polled:
            message = f"no polling thread polls port {port}"
        elif node not in nodes:
            message = f"port {port} is on NUMA node {node}, where no polling thread runs"
        else:
            continue
        severity: Severity = "warning" if port in polled else "error"
        cpus = facts.processors.nodes.get(node, frozenset()) if facts.processors else frozenset()
        remedy = (
            f"{_SET}pmd-cpu-mask={as_mask(facts.polled | {max(cpus)})}" if cpus else "see ovs-appctl dpif-netdev/pmd-rxq-show"
        )
        why = "its frames cross between the nodes, or are not taken at all"
        yield Finding("port-not-polled", severity, WHERE, message, remedy, port, why)


def _next_cpu(facts: NodeFacts) -> frozenset[int]:
    """A CPU for one more polling thread, which is not the machine's last free one; none where there is none."""
    processors = facts.processors or Processors()
    free = sorted(processors.online - facts.polled)
    isolated = sorted(set(free) & processors.isolated)
    return frozenset(isolated[-1:] or (free[-1:] if len(free) > 1 else ()))


def others(polled: frozenset[int], processors: Processors) -> str:
    """The list of processors for everything else; all where polling threads have all."""
    return as_list(processors.online - polled or processors.online)


def _judge_masks(switch: SwitchReport, processors: Processors) -> Iterator[Finding]:
    config, online = switch.other_config, processors.online
    spare = as_mask({max(online)}) if online else "0x2"
    text = config.get("pmd-cpu-mask", "")
    mask, lcores = read_mask(text), read_mask(config.get("dpdk-lcore-mask", "")) or frozenset()
    if not text:
        message = (
            "other_config:pmd-cpu-mask is not set: Open vSwitch takes one processor of each NUMA node, whatever else runs there"
        )
        yield Finding("pmd-mask-unset", "note", WHERE, message, f"{_SET}pmd-cpu-mask={spare}", "pmd-cpu-mask")
        return
    if not mask:
        message = f"other_config:pmd-cpu-mask is {text}, which is no mask of processors: it has no effect"
        yield Finding("pmd-mask-invalid", "error", WHERE, message, f"{_SET}pmd-cpu-mask={spare}", "pmd-cpu-mask")
        return
    if absent := (mask | lcores) - online:
        key = "pmd-cpu-mask" if mask - online else "dpdk-lcore-mask"
        left = (mask if key == "pmd-cpu-mask" else lcores) & online
        message = f"other_config:{key} names CPU {as_list(absent)}, and the machine has CPU {as_list(online)} online"
        remedy = f"{_SET}{key}={as_mask(left) if left else spare}"
        yield Finding("pmd-cpu-absent", "error", WHERE, message, remedy, key, "no thread is started there")
    if online <= mask and len(online) > 1:
        message = f"other_config:pmd-cpu-mask, {text}, has every CPU of the machine: none is left for other programs"
        remedy = f"{_SET}pmd-cpu-mask={as_mask(online - {min(online)})}"
        yield Finding("pmd-everywhere", "warning", WHERE, message, remedy, "pmd-cpu-mask", _LOSES)
    elif shared := mask & lcores:
        message = f"CPU {as_list(shared)} is in pmd-cpu-mask and in dpdk-lcore-mask: other threads of ovs-vswitchd run there, too"
        left = online - mask
        remedy = (
            f"{_SET}dpdk-lcore-mask={as_mask({min(left)}) if left else '0x1'}, and restart ovs-vswitchd when traffic may stop"
        )
        yield Finding("pmd-lcore-shared", "warning", WHERE, message, remedy, "dpdk-lcore-mask", _LOSES)


def _judge_isolation(polled: frozenset[int], processors: Processors) -> Iterator[Finding]:
    anyone = polled & (processors.init or processors.online) - processors.isolated
    if anyone and processors.online - polled:
        cpus = as_list(polled)
        message = f"CPU {as_list(anyone)} is not isolated: the scheduler puts any process there"
        remedy = f"boot with isolcpus={cpus} nohz_full={cpus} rcu_nocbs={cpus} on the kernel's command line"
        yield Finding("pmd-not-isolated", "warning", WHERE, message, remedy, "isolcpus", _LOSES)
    elif ticking := polled & processors.isolated - processors.nohz_full:
        message = f"CPU {as_list(ticking)} is isolated, and not in nohz_full: the kernel's timer interrupts its polling thread"
        remedy = f"boot with nohz_full={as_list(polled)} rcu_nocbs={as_list(polled)} on the kernel's command line"
        yield Finding("pmd-timer", "note", WHERE, message, remedy, "nohz_full")
    if idle := processors.isolated - polled:
        message = f"CPU {as_list(idle)} is isolated, and no polling thread runs there: nothing uses it, unless it is bound to it"
        remedy = f"{_SET}pmd-cpu-mask={as_mask(polled | idle)}, if it is meant for the switch"
        yield Finding("isolated-unused", "note", WHERE, message, remedy, "pmd-cpu-mask")


def _judge_kubelet(polled: frozenset[int], processors: Processors) -> Iterator[Finding]:
    kubelet = processors.kubelet
    if kubelet is None or kubelet.policy != "static":
        return
    reserved = as_list(polled | {min(processors.online)})
    remedy = (
        f'reservedSystemCPUs: "{reserved}" and cpuManagerPolicyOptions: {{strict-cpu-reservation: "true"}} in the kubelet\'s '
        "configuration; then drain the node, stop the kubelet, rm cpu_manager_state in its directory, and start it"
    )
    if given := polled & kubelet.given:
        message = f"the kubelet has given CPU {as_list(given)} to a container alone, and a polling thread runs there"
        yield Finding("pmd-given-to-pod", "error", WHERE, message, remedy, "kubelet", _LOSES)
    elif shared := (polled & kubelet.shared) - processors.isolated:
        message = f"the kubelet's CPU manager lets pods run on CPU {as_list(shared)}"
        yield Finding("pmd-kubelet", "warning", WHERE, message, remedy, "kubelet", _LOSES)


def _judge_speed(polled: frozenset[int], processors: Processors) -> Iterator[Finding]:
    for cpu in sorted(polled):
        governor = processors.governors.get(cpu, "performance")
        if governor != "performance":
            message = f"the frequency governor of CPU {cpu} is {governor}"
            remedy = f"echo performance > /sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"
            yield Finding(
                "pmd-governor", "warning", WHERE, message, remedy, f"CPU {cpu}", "the switch is slower than the machine"
            )
        busy = processors.siblings.get(cpu, frozenset()) - processors.isolated - polled
        if busy:
            message = (
                f"CPU {as_list(busy)} is another thread of the core of CPU {cpu}, and not isolated: both share the core's speed"
            )
            remedy = f"isolate it, too (isolcpus={as_list(polled | busy)}), and leave it unused"
            yield Finding("pmd-sibling", "note", WHERE, message, remedy, f"CPU {cpu}")


def _judge_users(users: Sequence[CpuUser], polled: frozenset[int], processors: Processors) -> Iterator[Finding]:
    """All other processes at once; a second switch apart, whose own polling threads no taskset may move."""
    switches = [each for each in users if each.name.startswith(_SWITCH)]
    plain, free = [each for each in users if each not in switches], others(polled, processors)
    if switches:
        message = f"another switch runs where a polling thread of this one does: {_list_users(switches)}"
        remedy = (
            f"give it CPUs of its own at its own database (ovs-vsctl --db=REMOTE): {_SET[len('ovs-vsctl ') :]}pmd-cpu-mask=MASK"
        )
        yield Finding("pmd-cpu-two-switches", "warning", WHERE, message, remedy, "processes", _LOSES)
    if plain:
        message = f"other processes run where a polling thread does: {_list_users(plain)}"
        pids = [str(each.pid) for each in plain[:_USERS_MAX]]
        remedy = f"echo {' '.join(pids)} | xargs -n 1 taskset -apc {free}"
        if not polled < processors.online:
            remedy = f"end or move them: {', '.join(pids)}"
        yield Finding("pmd-cpu-shared", "warning", WHERE, message, remedy, "processes", _LOSES)


def _list_users(users: Sequence[CpuUser]) -> str:
    told = []
    for each in users[:_USERS_MAX]:
        used = f"took {each.share:.0%} of CPU {as_list(each.cpus)}" if each.share else f"is bound to CPU {as_list(each.cpus)}"
        told.append(f"process {each.pid} ({each.name}) {used}")
    more = len(users) - _USERS_MAX
    return ", ".join(told) + (f", and {more} more" if more > 0 else "")


def _judge_use(facts: NodeFacts, polled: frozenset[int], processors: Processors) -> Iterator[Finding]:
    if facts.use is None:
        return
    free = others(polled, processors)
    yield from _judge_users(facts.use.users, polled, processors)
    for each in facts.use.interrupts:
        where = f"CPU {as_list(each.cpus)}, where a polling thread runs"
        message = f"interrupt {each.number} ({each.name}) came {each.count} times to {where}"
        remedy = f"echo {free} > /proc/irq/{each.number}/smp_affinity_list"
        yield Finding("pmd-interrupt", "warning", WHERE, message, remedy, f"interrupt {each.number}", _LOSES)
    balancer = facts.use.balancer
    if balancer and balancer.spared is not None and polled - balancer.spared:
        message = f"irqbalance (process {balancer.pid}) may move interrupts to CPU {as_list(polled - balancer.spared)}"
        remedy = f"echo IRQBALANCE_BANNED_CPULIST={as_list(polled)} >> /etc/default/irqbalance && systemctl restart irqbalance"
        yield Finding("irqbalance", "warning", WHERE, message, remedy, "irqbalance", _LOSES)

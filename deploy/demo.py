"""Attach three pods to a private OVS-DPDK through the installed binary and the agent, kill the agent, probe, and check the end.

The demo does by hand what a runtime and a kubelet do: network namespaces, emptyDir volumes, CNI calls. The application in two of
the pods is DPDK's testpmd, started with only the arguments that the pod's own document gives it. A fourth pod has no DPDK.

The demo checks every fact that it prints: it names one that does not hold, and ends with exit code 1. It leaves nothing behind,
however it ends.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from deploy.demo_frames import PERIOD_S, Meter, finish, settle, testpmd, type_into
from deploy.demo_node import (
    AGENT_MAX_MIB,
    APP_MIB,
    BRIDGE,
    COMMAND,
    HTTP_PORT,
    ROUNDS,
    SHIM_MAX,
    Agent,
    Call,
    Demo,
    Pod,
    check,
    console,
    execute,
    leftovers,
    mounts,
    pod,
    processes,
    raise_if_stopped,
    run,
    running,
    switch,
    wait_for,
)
from deploy.demo_run import perform, show_output, show_prompt, tell_line
from userspace_cni.cli import node_load, view

BUSY_PAUSE_S = 4 * PERIOD_S
"""A longer pause between frames is told with a reason."""


def prepare(demo: Demo, agent: Agent) -> None:
    """Install both plugins, look at the binary, start the agent."""
    version = demo.vsctl("get", "Open_vSwitch", ".", "dpdk_version").strip('"')
    tell_line(f"{run('ovs-vswitchd', '--version').splitlines()[0]}, {version}")
    with view.progress("userspace-cni install"):
        demo.command("install", "--bin-dir", str(demo.shim.parent))
        demo.command("install", "--standalone", "--bin-dir", str(demo.process.parent))
    size = demo.shim.stat().st_size
    check(size <= SHIM_MAX, f"{demo.shim} has {size} bytes, more than {SHIM_MAX}")
    empty = demo.directory / "empty"
    empty.mkdir()
    shutil.copy(demo.shim, empty)
    answer = run("env", "CNI_COMMAND=VERSION", "chroot", str(empty), "/userspace")
    check(json.loads(answer).get("supportedVersions"), f"in an empty root directory the binary answered {answer}")
    tell_line(f"the plugin is one file of {size / 1024:.0f} KiB; it answers VERSION in a root directory with nothing else in it")
    seconds = agent.start()
    times = [demo.status_ms() for _ in range(2 * ROUNDS + 1)]
    check(all(times), "the agent serves, but STATUS says that pods cannot be attached")
    tell_line(f"the agent serves after {seconds:.1f} s; STATUS through plugin and agent: {statistics.median(times):.1f} ms")


def compare(demo: Demo, pod: Pod) -> Call:
    """Attach the pod in both ways in turn, and print the times; it stays attached through the agent."""
    times: dict[Path, list[float]] = {demo.process: [], demo.shim: []}
    with view.progress("ADD in both ways, in turn"):
        for plugin in [demo.process, demo.shim] * ROUNDS:
            times[plugin].append(demo.cni("ADD", pod, plugin).ms)
            demo.cni("DEL", pod, plugin)
            raise_if_stopped()
    process, shim = (statistics.median(each) for each in times.values())
    tell_line(
        f"{pod.name}: ",
        (f"{shim:.0f} ms", "green"),
        f" through the agent, {process:.0f} ms by a Python process per call, medians of {ROUNDS} ({process / shim:.0f} : 1)",
    )
    return demo.cni("ADD", pod)


def attach(demo: Demo, agent: Agent, pods: list[Pod]) -> dict[str, dict[str, Any]]:
    """Attach all pods, and return the results by name."""
    results = {}
    for each in pods[:2]:
        call = demo.cni("ADD", each)
        results[each.name] = call.result
        tell_line(f"{each.name}: {call.ms:.0f} ms")
    results[pods[2].name] = compare(demo, pods[2]).result
    check(agent.mib < AGENT_MAX_MIB, f"the agent takes {agent.mib:.0f} MiB")
    tell_line(f"the agent's memory now: {agent.mib:.0f} MiB")
    ports = demo.vsctl("list-ports", BRIDGE).split()
    check(sorted(ports) == sorted(each.port for each in pods), f"the ports of {BRIDGE} are {ports}")
    json_text = Syntax(json.dumps(results["pod-a"], indent=2), "json", background_color="default", word_wrap=True)
    console.print(Panel(json_text, title="what the runtime is told of pod-a"))
    return results


def start_apps(demo: Demo, pods: list[Pod], second_mac: str, stack: ExitStack) -> list[subprocess.Popen[str]]:
    """Start an application in each of two pods, which send a burst of frames to and fro."""
    first, second = pods
    processes = {}
    for each in (second, first):
        processes[each.name] = stack.enter_context(testpmd(each, demo.pod_document(each)))
        wait_for(partial(is_up, demo, each), f"the link of {each.name}")
    type_into(processes[second.name], "start")
    type_into(processes[first.name], f"set eth-peer 0 {second_mac}", "start tx_first")
    return [processes[each.name] for each in pods]


def show_node(demo: Demo, pods: list[Pod]) -> None:
    """Show the node as an administrator sees it while frames flow."""
    for each in pods[:2]:
        what = f"userspace-cni to see the application of {each.name} connected"
        wait_for(partial(is_connected, demo, each), what)
    with view.progress("userspace-cni list"):
        told, listed = demo.told("list"), demo.command("list")
    names = [f"demo/{each.name}/net1" for each in pods]
    check([each["name"] for each in told] == names, f"userspace-cni list does not show {', '.join(names)}: {listed}")
    show_prompt("userspace-cni list")
    show_output(listed)
    check(not is_up(demo, pods[2]), f"{pods[2].name} has a link, though no application runs in it")
    tell_line(f"In {pods[2].name} runs no application: its link is down.\n")
    with view.progress("userspace-cni show"):
        [told], shown = demo.told("show", f"demo/{pods[0].name}"), demo.command("show", f"demo/{pods[0].name}")
    check(told["port"] == pods[0].port, f"userspace-cni show has {told['port']} as the port of {pods[0].name}: {shown}")
    show_prompt(f"userspace-cni show demo/{pods[0].name}", "(the beginning)")
    show_output("\n\n".join(shown.split("\n\n")[:2]))
    steps = ", ".join(each["step"] for each in told["steps"])
    tell_line(f"The record has these steps, and DEL undoes them from the last to the first: {steps}.")


def is_up(demo: Demo, pod: Pod) -> bool:
    """Whether the switch has a link with the pod's application."""
    return demo.vsctl("get", "Interface", pod.port, "link_state") == "up"


def is_connected(demo: Demo, pod: Pod) -> bool:
    """Whether the switch's database shows the link too; it is updated every 5 s."""
    return demo.vsctl("--if-exists", "get", "Interface", pod.port, "status:status").strip('"') == "connected"


def remains_of(demo: Demo, pod: Pod) -> list[str]:
    """List what is left of the pod."""
    here = [("its port", pod.port in demo.vsctl("list-ports", BRIDGE).split())]
    here += [("a mount", any(pod.uid in point for point in mounts(demo)))]
    here += [("a record", any(pod.container_id in path.name for path in (demo.state / "attachments").iterdir()))]
    here += [("a lease", any(pod.container_id in path.read_text() for path in (demo.directory / "leases").rglob("10.*")))]
    here += [("files in its volume", any(pod.volume.iterdir()))]
    return [what for what, there in here if there]


def kill_and_restart(demo: Demo, agent: Agent, meter: Meter, pod: Pod) -> list[tuple[str, list[str]]]:
    """Kill the agent, delete a pod, start another agent; return what existed in between, by kind."""
    assert agent.process
    before = dict(leftovers(demo))
    first = agent.process.pid
    meter.watch()
    code = agent.end(signal.SIGKILL)
    check(code == -signal.SIGKILL, f"the agent that was killed ended with {code}")
    meter.mark("without an agent")
    check(not demo.status_ms(), "STATUS says that all is well while no agent runs")
    call = demo.cni("DEL", pod)
    check(len(demo.spooled()) == 1, f"after one DEL without an agent the spool holds {demo.spooled()}")
    check("its port" in remains_of(demo, pod), f"the port of {pod.name} has gone, though no agent could remove it")
    tell_line(
        f"agent {first} is dead; DEL of {pod.name}: exit code 0 after {call.ms:.0f} ms, 1 entry in the spool, and on stderr:"
    )
    tell_line((call.said.strip(), "yellow"))
    tell_line(f"still there of {pod.name}: {', '.join(remains_of(demo, pod))}")
    before["spooled DELs"] = demo.spooled()
    meter.watch()

    demo.announce("Another agent: it carries out the DEL from the spool")
    meter.mark("with the next agent, from its start on")
    seconds = agent.start()
    check(not demo.spooled(), f"the agent takes calls, but the spool holds {demo.spooled()}")
    more = wait_for(lambda: not remains_of(demo, pod), f"the spooled DEL of {pod.name} to be carried out")
    tell_line(f"it serves after {seconds:.1f} s, the spool is empty; {more * 1000:.0f} ms later nothing is there of {pod.name}")
    meter.watch()
    meter.mark("")
    return list(before.items())


def show_frames(meter: Meter) -> None:
    """Show that frames went on, phase by phase."""
    table = Table(title="\nFrames that the switch took from the two other pods", title_justify="left")
    for column in ("", "seconds", "pod-a", "pod-b", "longest pause, s"):
        table.add_column(column, justify="right" if column else "left")
    longest = 0.0
    for name, seconds, frames, pause in meter.phases():
        table.add_row(name, f"{seconds:.1f}", *(f"{count:,}" for count in frames), f"< {math.ceil(pause * 10) / 10:.1f}")
        longest = max(longest, pause)
    console.print(table)
    tell_line(f"The counters are read every {PERIOD_S:g} s: a pause is no longer than the time between two that show new frames.")
    if longest > BUSY_PAUSE_S:
        load = node_load.look()
        why = str(load) if load.is_busy else "other programs took the CPUs meanwhile"
        tell_line((f"For up to {longest:.1f} s no frame was seen: {why}; the switch polls its ports on one of them.", "yellow"))


def show_made(demo: Demo, pods: list[Pod], results: dict[str, dict[str, Any]], apps: list[subprocess.Popen[str]]) -> None:
    """Stop the applications; show what was made for them, and the counters at both ends of each port."""
    for process in apps:
        type_into(process, "stop")
    switch = settle(demo, pods)  # before the ports go down: that clears them
    with view.progress("the applications end"):
        counted = [finish(process) for process in apps]
    check(all(each["RX-packets"] for each in counted), "an application received nothing")
    check(all(app["RX-packets"] <= port["tx"] for app, port in zip(counted, switch, strict=True)), "frames came from nowhere")
    caption = "What was on its way to an application that was told to stop is not among what it received."
    table = Table(title="\nWhat was made, and what was counted at both ends", caption=caption, title_justify="left")
    table.caption_justify = "left"
    for column in ("", *(each.name for each in pods)):
        table.add_column(column, justify="right" if column else "left", overflow="fold")

    def read(kind: str, name: str) -> list[str]:
        return [demo.vsctl("get", kind, each.port, name) for each in pods]

    table.add_row("OVS port", *(each.port for each in pods))
    table.add_row("VLAN", *read("Port", "tag"))
    table.add_row("MTU", *read("Interface", "mtu"))
    table.add_row("MAC", *(results[each.name]["interfaces"][0]["mac"] for each in pods))
    table.add_row("address", *(results[each.name]["ips"][0]["address"] for each in pods))
    table.add_row("application sent", *(f"{each['TX-packets']:,}" for each in counted))
    table.add_row("switch took from it", *(f"{each['rx']:,}" for each in switch))
    table.add_row("switch gave to it", *(f"{each['tx']:,}" for each in switch))
    table.add_row("application received", *(f"{each['RX-packets']:,}" for each in counted))
    console.print(table)


def show_datapath(demo: Demo, pods: list[Pod]) -> None:
    """Show how to tell a dead datapath from a silent application."""
    for each in pods:
        wait_for(lambda each=each: not is_up(demo, each), f"the link of {each.name} to go down")  # type: ignore[misc]
    for args in (["probe", BRIDGE], ["ping", *(f"demo/{each.name}" for each in pods), "--count", "500"]):
        with view.progress(f"userspace-cni {args[0]}"):
            shown = demo.command(*args)
        show_prompt(f"userspace-cni {' '.join(args)}")
        show_output(shown)
    tell_line("This switch's polling thread sleeps when idle, which is what takes milliseconds.")


def show_ordinary(demo: Demo, ordinary: Pod, dpdk: Pod, address: str) -> None:
    """Attach a pod by a kernel link on the same bridge; a program in the DPDK pod fetches a page from it by a tap."""
    call = demo.cni("ADD", ordinary, network=demo.ordinary)
    own = call.result["ips"][0]["address"].partition("/")[0]
    tell_line(f"{ordinary.name}: {call.ms:.0f} ms; its net1 is a veth, whose other end is a port of {BRIDGE}: {own}")
    with ExitStack() as stack:
        serve = ("-m", "http.server", "--bind", own, "--directory", str(ordinary.volume), str(HTTP_PORT))
        stack.enter_context(running(ordinary, sys.executable, *serve))
        stack.enter_context(running(dpdk, COMMAND, "tap", "--dir", str(dpdk.volume)))
        fetch = f"import urllib.request as r; print(r.urlopen('http://{own}:{HTTP_PORT}', timeout=1).status)"
        argv = ["nsenter", f"--net={dpdk.netns}", sys.executable, "-c", fetch]
        wait_for(lambda: execute(argv).stdout.strip() == "200", f"{dpdk.name} to fetch a page from {ordinary.name}")
    tell_line(f"{dpdk.name} ({address}), by userspace-cni tap on its vhost-user port, has fetched a page from it by TCP")
    tell_line(f"DEL: {demo.cni('DEL', ordinary, network=demo.ordinary).ms:.0f} ms")


def show_leftovers(before: list[tuple[str, list[str]]], now: list[tuple[str, list[str]]]) -> None:
    """Show that nothing is left of what was there before."""
    table = Table()
    for column in ("looked for", "found before", "found now"):
        table.add_column(column, overflow="fold", justify="right" if column == "found before" else "left")
    for (kind, were), (_, are) in zip(before, now, strict=True):
        check(were, f"while pods were attached none of this was found: {kind}")
        table.add_row(kind, str(len(were)), Text(" ".join(are), "red") if are else Text("nothing", "green"))
    console.print(table)
    check(not any(are for _, are in now), "something is left")


def play(demo: Demo) -> None:
    """Run all steps of the demo."""
    with ExitStack() as stack:
        demo.announce("A private OVS-DPDK, the plugin installed for a runtime, the agent, three pods")
        stack.enter_context(switch(demo, app_pages=APP_MIB))
        agent = stack.enter_context(Agent(demo))
        prepare(demo, agent)
        pods = [stack.enter_context(pod(demo, number)) for number in range(3)]
        talking, leaving = pods[:2], pods[2]

        demo.announce("ADD: the runtime calls the plugin once per pod")
        results = attach(demo, agent, pods)

        demo.announce("Frames: each pod's testpmd sends back what it gets from the other's, through the switch")
        console.print(Panel(demo.pod_document(pods[0]), title="in pod-a: python -m userspace_cni.pod"))
        with ExitStack() as running:
            apps = start_apps(demo, talking, results["pod-b"]["interfaces"][0]["mac"], running)
            meter = running.enter_context(Meter(demo, talking))
            meter.mark("with the first agent")
            show_node(demo, pods)

            demo.announce("kill -9 of the agent; a pod goes while there is none")
            before = kill_and_restart(demo, agent, meter, leaving)
            show_frames(meter)
            show_made(demo, talking, results, apps)

        demo.announce("No application, no DPDK: a probe, and frames between the two pods' ports")
        show_datapath(demo, talking)

        demo.announce("An ordinary pod on the same bridge: a kernel link, no DPDK")
        show_ordinary(demo, stack.enter_context(pod(demo, 3)), pods[0], results["pod-a"]["ips"][0]["address"])

        demo.announce("DEL: the other pods go; the agent is told to stop")
        for each in talking:
            tell_line(f"{each.name}: {demo.cni('DEL', each).ms:.0f} ms")
        began = time.monotonic()
        code = agent.end(signal.SIGTERM)
        check(code == 0, f"the agent ended with {code} after SIGTERM")
        tell_line(f"the agent: exit code 0, {(time.monotonic() - began) * 1000:.0f} ms after SIGTERM")

        demo.announce("What is left")
        show_leftovers(before, leftovers(demo))
    check(not processes(demo, switch=True), f"still running: {processes(demo, switch=True)}")
    check(not mounts(demo), f"still mounted: {mounts(demo)}")


if __name__ == "__main__":
    sys.exit(perform(Demo, play, "The switch is stopped, its hugepages are given back."))

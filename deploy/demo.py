"""Attach three pods to a private OVS-DPDK through the installed binary and the agent, kill the agent, probe, and check the end.

The demo does by hand what a runtime and a kubelet do: network namespaces, emptyDir volumes, CNI calls. The application in two of
the pods is DPDK's testpmd, started with only the arguments that the pod's own document gives it. A fourth pod has no DPDK.

What it prints is a story that is read in half a minute: a picture, then what happens, with the seconds since the start; no more
than two or three facts of each stage. The demo checks these and many more: it names one that does not hold, and ends with exit
code 1. It leaves nothing behind, however it ends.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import statistics
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

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
from userspace_cni.cli.exit_codes import FOUND

FIRST = "with the first agent"
"""The first phase of the frames."""
BUSY_PAUSE_S = 4 * PERIOD_S
"""A longer pause between frames is told with a reason."""


PICTURE = """\
   pod-a          pod-b          pod-c          pod-d
   testpmd        testpmd        no program     web server
      |              |              |              |
      | vhost-user   | vhost-user   | vhost-user   | veth
  +---+--------------+--------------+--------------+-------+
  | br-demo, a bridge of Open vSwitch with DPDK            |
  +----------------------------^---------------------------+
                               | OVSDB
  container runtime --> plugin --> agent
"""


def prepare(demo: Demo, agent: Agent) -> None:
    """Install both plugins, look at the binary, start the agent."""
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
    seconds = agent.start()
    release = run("ovs-vswitchd", "--version").splitlines()[0].rpartition(" ")[2]
    dpdk = demo.vsctl("get", "Open_vSwitch", ".", "dpdk_version").strip('"')
    tell_line(f"Open vSwitch {release} with {dpdk} runs.")
    tell_line(f"The agent takes calls after {seconds:.1f} s. The plugin is one file of {size / 1024:.0f} KiB.")


def compare(demo: Demo, pod: Pod) -> tuple[float, float]:
    """Attach and detach the pod in both ways in turn; the medians in ms, through the agent and by a process per call."""
    times: dict[Path, list[float]] = {demo.process: [], demo.shim: []}
    with view.progress("ADD with and without the agent, in turn"):
        for plugin in [demo.process, demo.shim] * ROUNDS:
            times[plugin].append(demo.cni("ADD", pod, plugin).ms)
            demo.cni("DEL", pod, plugin)
            raise_if_stopped()
    return statistics.median(times[demo.shim]), statistics.median(times[demo.process])


def attach(demo: Demo, agent: Agent, pods: list[Pod]) -> dict[str, dict[str, Any]]:
    """Attach all pods, and return the results by name."""
    through_agent, by_process = compare(demo, pods[2])
    calls = [demo.cni("ADD", each) for each in pods]
    check(agent.mib < AGENT_MAX_MIB, f"the agent takes {agent.mib:.0f} MiB")
    ports = demo.vsctl("list-ports", BRIDGE).split()
    check(sorted(ports) == sorted(each.port for each in pods), f"the ports of {BRIDGE} are {ports}")
    took = ", ".join(f"{call.ms:.0f}" for call in calls[:-1])
    tell_line("They have ports on the bridge after ", (f"{took} and {calls[-1].ms:.0f} ms", "green"), ".")
    tell_line(f"Without an agent each call starts Python: {by_process:.0f} ms instead of {through_agent:.0f}, medians.")
    return {each.name: call.result for each, call in zip(pods, calls, strict=True)}


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


def look_at(demo: Demo, pods: list[Pod]) -> None:
    """See that the commands say of two pods that they are well, and of the third why it is not."""
    for each in pods[:2]:
        what = f"userspace-cni to see the application of {each.name} connected"
        wait_for(partial(is_connected, demo, each), what)
    listed = demo.told("list")
    expected = [f"demo/{each.name}/net1" for each in pods]
    check([each["name"] for each in listed] == expected, f"userspace-cni list does not name {', '.join(expected)}: {listed}")
    demo.command("why", *(f"demo/{each.name}" for each in pods[:2]))  # which finds nothing, or ends with another code
    check(not is_up(demo, pods[2]), f"{pods[2].name} has a link, though no application runs in it")
    with view.progress("userspace-cni why"):
        said = demo.command("why", f"demo/{pods[2].name}", code=FOUND)
    show_prompt(f"userspace-cni why demo/{pods[2].name}", "(the beginnings of what it says)")
    found, _, remedy = said.partition("What to do: ")
    for part in (found.partition(". ")[0], f"What to do: {remedy.partition(';')[0]}"):
        show_output(f"{' '.join(part.split())} ...")


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
    meter.watch()
    code = agent.end(signal.SIGKILL)
    check(code == -signal.SIGKILL, f"the agent that was killed ended with {code}")
    meter.mark("without an agent")
    check(not demo.status_ms(), "STATUS says that all is well while no agent runs")
    call = demo.cni("DEL", pod)
    check(len(demo.spooled()) == 1, f"after one DEL without an agent the spool holds {demo.spooled()}")
    check("its port" in remains_of(demo, pod), f"the port of {pod.name} has gone, though no agent could remove it")
    tell_line(f"The runtime's DEL succeeds after {call.ms:.0f} ms: the plugin stores it for the next agent.")
    before["spooled DELs"] = demo.spooled()
    meter.watch()

    demo.announce("Another agent starts.")
    meter.mark("with the next agent")
    seconds = agent.start()
    check(not demo.spooled(), f"the agent takes calls, but the spool holds {demo.spooled()}")
    wait_for(lambda: not remains_of(demo, pod), f"the stored DEL of {pod.name} to be carried out")
    tell_line(f"It takes calls after {seconds:.1f} s and carries out the stored DEL: nothing is left of {pod.name}.")
    meter.watch()
    meter.mark("")
    return list(before.items())


def tell_frames(meter: Meter, pods: list[Pod]) -> None:
    """Tell how many frames passed since the agent was killed, and for how long none was seen."""
    phases = [phase for phase in meter.phases() if phase[0] != FIRST]
    frames = [sum(counts) for counts in zip(*(frames for _, _, frames, _ in phases), strict=True)]
    longest = max(pause for _, _, _, pause in phases)
    each = " and ".join(f"{count:,} of {pod.name}" for pod, count in zip(pods, frames, strict=True))
    seconds = math.ceil(longest * 10) / 10
    tell_line("Frames since the kill: ", (each, "green"), f"; the longest pause was below {seconds:.1f} s.")
    if longest > BUSY_PAUSE_S:
        load = node_load.look()
        why = str(load) if load.is_busy else "other programs took the CPUs meanwhile"
        tell_line((f"That is long: {why}; the switch polls its ports on one of them.", "yellow"))


def end_apps(demo: Demo, pods: list[Pod], apps: list[subprocess.Popen[str]]) -> None:
    """Stop the applications, and compare the counters at both ends of each port."""
    for process in apps:
        type_into(process, "stop")
    switch = settle(demo, pods)  # before the ports go down: that clears them
    with view.progress("the applications end"):
        counted = [finish(process) for process in apps]
    check(all(each["RX-packets"] for each in counted), "an application received nothing")
    check(all(app["RX-packets"] <= port["tx"] for app, port in zip(counted, switch, strict=True)), "frames came from nowhere")


def measure(demo: Demo, pods: list[Pod]) -> None:
    """Show how to tell a dead datapath from a silent application."""
    for each in pods:
        wait_for(lambda each=each: not is_up(demo, each), f"the link of {each.name} to go down")  # type: ignore[misc]
    with view.progress("userspace-cni probe"):
        [probed] = demo.told("probe", BRIDGE)["bridges"]
    check(probed["alive"], f"userspace-cni probe does not say that {BRIDGE} forwards: {probed}")
    show_prompt(f"userspace-cni probe {BRIDGE}")
    tell_line(
        f"{probed['state']}: {probed['frames']} of {probed['asked']} frames, half of them within {ms(probed['rtt']['p50_ns'])}"
    )
    names = [f"demo/{each.name}" for each in pods]
    with view.progress("userspace-cni ping"):
        echo = demo.told("ping", *names, "--count", "500")
    check(echo["received"], f"userspace-cni ping: no frame came back: {echo}")
    show_prompt(f"userspace-cni ping {' '.join(names)} --count 500")
    tell_line(
        f"{echo['received']} of {echo['count']} round trips, half of them within {ms(echo['nanoseconds']['p50'])}"
        " (this switch's polling thread sleeps when idle)"
    )


def ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.1f} ms"


def fetch_page(demo: Demo, ordinary: Pod, dpdk: Pod) -> None:
    """Attach a pod by a kernel link on the same bridge; a program in the DPDK pod fetches a page from it by a tap."""
    call = demo.cni("ADD", ordinary, network=demo.ordinary)
    own = call.result["ips"][0]["address"].partition("/")[0]
    with ExitStack() as stack:
        serve = ("-m", "http.server", "--bind", own, "--directory", str(ordinary.volume), str(HTTP_PORT))
        stack.enter_context(running(ordinary, sys.executable, *serve))
        stack.enter_context(running(dpdk, COMMAND, "tap", "--dir", str(dpdk.volume)))
        fetch = f"import urllib.request as r; print(r.urlopen('http://{own}:{HTTP_PORT}', timeout=1).status)"
        argv = ["nsenter", f"--net={dpdk.netns}", sys.executable, "-c", fetch]
        wait_for(lambda: execute(argv).stdout.strip() == "200", f"{dpdk.name} to fetch a page from {ordinary.name}")
    demo.cni("DEL", ordinary, network=demo.ordinary)
    tell_line(
        f"ADD takes {call.ms:.0f} ms. {dpdk.name}, whose testpmd has ended, gets a kernel link of its vhost-user port by"
        " `userspace-cni tap`, and fetches a page from it."
    )


def tell_leftovers(before: list[tuple[str, list[str]]], now: list[tuple[str, list[str]]]) -> None:
    """Tell that nothing is left of what was there before."""
    for kind, were in before:
        check(were, f"while pods were attached none of this was found: {kind}")
    left = [f"{kind}: {' '.join(are)}" for kind, are in now if are]
    check(not left, f"something is left: {'; '.join(left)}")
    tell_line(f"While pods were attached there were {', '.join(f'{kind} ({len(were)})' for kind, were in before)}.")
    tell_line(("Of all this nothing is left.", "green"))


def play(demo: Demo) -> None:
    """Run all stages of the demo."""
    console.print(Text(PICTURE))
    with ExitStack() as stack:
        demo.announce("A switch of the demo's own starts, then the agent.")
        stack.enter_context(switch(demo, app_pages=APP_MIB))
        agent = stack.enter_context(Agent(demo))
        prepare(demo, agent)
        pods = [stack.enter_context(pod(demo, number)) for number in range(3)]
        talking, leaving = pods[:2], pods[2]

        demo.announce("The runtime calls the plugin for pod-a, pod-b and pod-c (ADD).")
        results = attach(demo, agent, pods)

        demo.announce("testpmd in pod-a and pod-b send frames to each other. And pod-c?")
        with ExitStack() as running:
            apps = start_apps(demo, talking, results["pod-b"]["interfaces"][0]["mac"], running)
            meter = running.enter_context(Meter(demo, talking))
            meter.mark(FIRST)
            look_at(demo, pods)

            demo.announce("The agent is killed (kill -9), and pod-c is deleted.")
            before = kill_and_restart(demo, agent, meter, leaving)
            tell_frames(meter, talking)
            end_apps(demo, talking, apps)

        demo.announce("No application runs any more. Two commands send frames of their own.")
        measure(demo, talking)

        demo.announce("pod-d joins the bridge: an ordinary pod, by a kernel link.")
        fetch_page(demo, stack.enter_context(pod(demo, 3)), pods[0])

        demo.announce("The pods are deleted (DEL), the agent is told to stop.")
        for each in talking:
            demo.cni("DEL", each)
        code = agent.end(signal.SIGTERM)
        check(code == 0, f"the agent ended with {code} after SIGTERM")
        tell_leftovers(before, leftovers(demo))
    check(not processes(demo, switch=True), f"still running: {processes(demo, switch=True)}")
    check(not mounts(demo), f"still mounted: {mounts(demo)}")


if __name__ == "__main__":
    sys.exit(perform(Demo, play, "The switch is stopped, its huge pages are given back."))

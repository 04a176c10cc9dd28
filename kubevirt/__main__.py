"""The sidecar's process: `python -m kubevirt`, which KubeVirt starts beside a VM's virt-launcher, as user 107, without arguments.

So the environment can set every option. It serves until SIGTERM, SIGINT or the Shutdown callback, and then ends at once:
virt-launcher waits for it. Must need no privilege, and write nothing but its sockets.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kubevirt.definition import Definer
from kubevirt.domain import Policy
from kubevirt.placing import SidecarSocket, socket_file
from kubevirt.sidecar_errors import DefinitionRefused, KubevirtError
from kubevirt.sidecar_log import say
from kubevirt.socket_search import SidecarPlaces
from userspace_cni.pod.program_build import recorded_build

PREFIX: Final = "USERSPACE_CNI_KUBEVIRT_"
HOOKS: Final = "/var/run/kubevirt-hooks"
BINDING: Final = "vhostuser"
STOPPING: Final = (signal.SIGTERM, signal.SIGINT)

_MTU: Final = ("off", "element", "override", "auto")
_STDERR: Final = 2
_VERSION: Final = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})(?![0-9])", re.ASCII)
_ABOUT: Final = """Adds the vhost-user interfaces of a KubeVirt VM to its definition. KubeVirt starts it as the sidecar of a
network binding; see docs/kubevirt.md. Every option can be given as environment variable too."""


def main() -> int:
    """Serve until stopped; exit code 1 when that is not possible. Does not return after serving."""
    arguments = _arguments(sys.argv[1:], os.environ)
    _occupy_standard_files()
    # blocked before any thread is made, and waited for by this one alone: a signal that comes early stays pending
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        sockets = _sockets(arguments, os.environ)
        _serve(_definer(arguments), sockets)
    except KubevirtError as error:
        say("error", error.message, trap=error.name, remedy=error.remedy)
        return 1
    # a thread that waits for a socket's source would hold a plain exit up until its deadline; the log has no buffer
    os._exit(0)


def _occupy_standard_files() -> None:
    """Where one is closed the next socket would have its number, and gRPC's own log, too, is written to number 2."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(null)


def _serve(definer: Definer, sockets: Sequence[SidecarSocket]) -> None:
    from kubevirt.sidecar_server import SidecarServer

    waiting = threading.get_ident()
    server = SidecarServer(definer, lambda: signal.pthread_kill(waiting, signal.SIGTERM))
    try:
        for socket in sockets:
            socket.prepare()
            server.listen(socket.address)
        server.start()
        gc.freeze()  # what stays to the end need not be looked through after each definition
        for socket in sockets:
            socket.publish()
        facts = {"binding": definer.binding, "mtu": definer.policy.mtu, "build": recorded_build().summary, "pid": os.getpid()}
        say("info", "serving", sockets=",".join(str(socket.path) for socket in sockets), **facts)
        number = signal.sigwait(STOPPING)
        say("info", "ending", signal=signal.Signals(number).name)
    finally:
        for socket in sockets:
            socket.withdraw()
        server.stop()
    say("info", "ended")


def _definer(arguments: argparse.Namespace) -> Definer:
    places = SidecarPlaces(podinfo=arguments.podinfo, claims=arguments.claims, environment=os.environ)
    policy = Policy(mtu=arguments.mtu, libvirt=arguments.libvirt)
    return Definer(arguments.binding, places, policy, None if arguments.told else frozenset(arguments.other_bindings))


def _sockets(arguments: argparse.Namespace, environment: Mapping[str, str]) -> list[SidecarSocket]:
    """Where to serve: those of the two places that exist. Raises Refused when neither does."""
    sockets: list[SidecarSocket] = []
    missing: list[str] = []
    hooks, container = Path(arguments.hooks_directory), environment.get("CONTAINER_NAME", "")
    if hooks.is_dir():
        # before 1.6 KubeVirt does not tell it, and has one directory for all sidecars, which may be this image twice
        file = socket_file(arguments.binding, container or os.urandom(4).hex())
        # virt-launcher has the whole volume there, of which this container has the part with its own name
        sockets.append(SidecarSocket(hooks / file, seen=hooks / container / file))
    else:
        missing.append(str(hooks))
    if arguments.plugin_socket:
        plugin = Path(arguments.plugin_socket)
        if plugin.parent.is_dir():
            sockets.append(SidecarSocket(plugin))
        else:
            missing.append(str(plugin.parent))
    if not sockets:
        raise DefinitionRefused(
            "no-hook-directory",
            f"there is nowhere to serve: no directory {' nor '.join(missing)}",
            "run it as a KubeVirt sidecar, which has that directory, or name another one (--hooks-directory, --plugin-socket)",
        )
    if missing and arguments.plugin_socket:
        say("warning", "one of the two places is missing and not served at", missing=missing[0])
    return sockets


def _arguments(argv: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
    """Parse the options: argument, else environment, else default. Ends the process for --help, --version and a wrong option."""
    parser = argparse.ArgumentParser("python -m kubevirt", description=_ABOUT)
    places = SidecarPlaces()

    def option(name: str, default: str, metavar: str, text: str, read: Callable[[str], object] = str) -> None:
        variable = PREFIX + name.removeprefix("--").replace("-", "_").upper()
        value = environment.get(variable) or default
        parser.add_argument(
            name, default=value, type=read, metavar=metavar, help=f"{text} [{variable}; else {default or 'none'}]"
        )

    option("--hooks-directory", HOOKS, "DIR", "where virt-launcher looks for hook sidecars")
    option("--plugin-socket", "", "PATH", "serve at this socket too, as a structured plugin")
    option("--binding", BINDING, "NAME", "name of the binding where KubeVirt does not tell it by NETWORK_BINDING_PLUGIN_NAME")
    option("--other-bindings", "", "NAME,...", "bindings of other sidecars: interfaces of them are left to these", _names)
    option("--mtu", "off", "|".join(_MTU), "how the guest learns its MTU; auto: by element where --libvirt can", _mtu)
    option("--libvirt", "", "X.Y.Z", "version of libvirt in virt-launcher", _version)
    option("--podinfo", str(places.podinfo), "FILE", "the downward API's network-info")
    option("--claims", str(places.claims), "DIR", "where the kubelet puts the metadata of resource claims")
    parser.add_argument("--version", action="version", version=recorded_build().summary)
    arguments = parser.parse_args(argv)
    arguments.told = environment.get("NETWORK_BINDING_PLUGIN_NAME", "")
    arguments.binding = arguments.told or arguments.binding
    return arguments


def _names(text: str) -> list[str]:
    return [name for name in re.split(r"[,\s]+", text) if name]


def _mtu(text: str) -> str:
    if text not in _MTU:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(_MTU)}")
    return text


def _version(text: str) -> tuple[int, ...]:
    """The numbers with which a version begins: distributions add to it, as 12.8.0-1.el9."""
    found = _VERSION.match(text)
    if text and not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a version, such as 11.10.0")
    return tuple(map(int, found[1].split("."))) if found else ()


if __name__ == "__main__":
    sys.exit(main())

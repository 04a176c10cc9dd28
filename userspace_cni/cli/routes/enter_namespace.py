"""`enter`: a program in a pod's network namespace, with everything else of the node's: its files, its programs, its rights."""

from __future__ import annotations

import os
import signal

import click

from userspace_cni.base.errors import BadEnvironment, HostNamespace
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.name_completion import pod_names
from userspace_cni.cli.routes.asking import inspector, pod_name
from userspace_cni.cli.site import CommandRefused, NodeCommand, open_site
from userspace_cni.routes.inspection import enter

_NOT_FOUND = 127
_NOT_STARTED = 126
"""Exit codes of a shell for a program that is not there, and for one that cannot be started."""
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that the interpreter ignores, which a program would inherit."""


@click.command(
    "enter",
    cls=NodeCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    examples=(
        "userspace-cni enter default/web-0",
        "userspace-cni enter default/web-0 ip route show",
    ),
)
@click.argument("pod", callback=pod_name, shell_complete=pod_names, metavar="NAMESPACE/POD")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[CMD [ARG]...]")
@click.pass_context
def enter_command(ctx: click.Context, pod: str, command: tuple[str, ...]) -> None:
    """Run CMD, else a shell ($SHELL or /bin/sh), in the network namespace of NAMESPACE/POD, as `nsenter --net` does.

    The pod may be of any CNI plugin. Everything but the network is the node's: programs and files; the rights are the user's. A
    network namespace of the node's own is refused. Exit code: that of CMD; 1 when the pod has no network namespace of its own
    on this node, 2 for arguments that are wrong, 3 for a user who is not root; 126 and 127 for a CMD that cannot be started or
    is not there.
    """
    site = open_site(ctx)
    argv = command[1:] if command[:1] == ("--",) else command  # as people know it of kubectl exec
    argv = argv or (site.environ.get("SHELL") or "/bin/sh",)
    into = inspector(site, "entering the network namespace of a pod")
    try:
        with view.progress(f"looking for {pod}"):
            entrance = into.entrance(pod)
    except (HostNamespace, BadEnvironment) as error:
        raise CommandRefused(f"{pod}: {error}", FOUND) from error
    try:
        enter(entrance)
    except OSError as error:
        raise CommandRefused(
            f"entering the network namespace of {pod}: {error.strerror}; it takes CAP_SYS_ADMIN", FOUND
        ) from error
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, {**site.environ})  # noqa: S606 - what the user asks for, without a shell
    except OSError as error:
        code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED
        raise CommandRefused(f"starting {argv[0]}: {error.strerror}", code) from error
    except ValueError as error:
        raise click.UsageError(f"CMD cannot be started: {error}") from error

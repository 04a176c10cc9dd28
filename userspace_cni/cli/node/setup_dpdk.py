"""`setup dpdk`: prints the commands that make a node ready for OVS-DPDK, or runs them; what is there is left alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from userspace_cni.base.cpu_sets import read_list
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, USAGE
from userspace_cni.cli.site import SWITCH_S, CommandRefused, NodeCommand, Site, open_site, patient
from userspace_cni.node.dpdk_facts import gather_dpdk_facts
from userspace_cni.node.dpdk_plan import SetupPlan, SetupRefused, SetupStep, SetupWishes, plan_dpdk
from userspace_cni.pod.quantity import amount

_PAGES: Final = {"2M": 2 << 20, "1G": 1 << 30}
_NOTHING: Final = "nothing to do: this node has what OVS-DPDK needs"
_WORDS: Final = 60
"""Of what a command says of its failure: the last ones."""
_LATER: Final = "when traffic may stop"


@click.command(
    "dpdk",
    cls=NodeCommand,
    examples=(
        "userspace-cni setup dpdk",
        "userspace-cni setup dpdk --memory 1Gi --pod-memory 4Gi --pmd-cpus 2-3",
        "userspace-cni setup dpdk --apply",
    ),
)
@click.option("--memory", metavar="SIZE", help="Of the switch, on each NUMA node with polling threads (dpdk-socket-mem), as 1Gi.")
@click.option("--pod-memory", metavar="SIZE", help="Huge pages for applications and VMs beside it, on each of these nodes.")
@click.option("--pmd-cpus", metavar="LIST", help="CPUs of the polling threads (pmd-cpu-mask), as 2-3,6.")
@click.option("--page-size", type=click.Choice(list(_PAGES)), help="Size of the pages. Default: the kernel's own.")
@click.option("--apply", "applies", is_flag=True, help="Run the commands, and not only print them.")
@click.option(
    "--restart", "restarts", is_flag=True, help="With a restart of ovs-vswitchd, if one is needed: it stops all traffic."
)
@click.option("--json", "in_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def setup_dpdk_command(ctx: click.Context, /, **options: Any) -> None:
    """Print the commands that make this node ready to run OVS-DPDK for pods, each with its reason, or with --apply run them:
    the package, huge pages now and at boot, a mount of hugetlbfs, the program that is started, and the switch's options.

    Only what is missing is printed: where nothing is, there is nothing to do. Options that are set already stay, unless others
    are asked for here. Pages are only added, and CPUs that the kubelet has given to a pod are not taken. ovs-vswitchd is not
    restarted without --restart, and the machine never is.

    Exit code: 0 when it is printed, done, or nothing is to do; 1 when a command failed, or what is asked for is not to be had.
    """
    site = open_site(ctx)
    wishes = SetupWishes(
        _bytes_of(options["memory"], "--memory"),
        _bytes_of(options["pod_memory"], "--pod-memory"),
        _cpus_of(options["pmd_cpus"]),
        _PAGES.get(options["page_size"] or ""),
    )
    if options["applies"] and site.drivers.installation.root.elsewhere:
        raise CommandRefused("--apply works on the host itself: print the commands here, and run them there", USAGE)
    site.require_root("looking at what this node has")
    plan = _plan(site, wishes)
    steps = _chosen(plan, restarts=options["restarts"])
    if options["applies"]:
        _apply(site, steps, quiet=options["in_json"])
        plan = _plan(site, wishes)
    if options["in_json"]:
        view.show_json(_as_values(plan))
    elif options["applies"]:
        _say_restart(plan)
    else:
        _show(plan, steps)
    if options["applies"] and plan.steps:
        left = view.join([each.name for each in plan.steps])
        view.note(f"still missing afterwards: {left}; if it is huge pages, memory is too fragmented: boot again")
        ctx.exit(FOUND)


def _bytes_of(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    found = 0 if text == "0" else amount(text)
    if found is None:
        raise click.UsageError(f"{option} {text}: it must be an amount of memory, such as 1Gi")
    return found


def _cpus_of(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    if not (cpus := read_list(text)):
        raise click.UsageError(f"--pmd-cpus {text}: it must be a list of CPUs, such as 2-3,6")
    return cpus


def _plan(site: Site, wishes: SetupWishes) -> SetupPlan:
    with view.progress("looking at the node"):
        facts = gather_dpdk_facts(site.drivers, site.liveness(), lambda: patient(SWITCH_S))
    try:
        return plan_dpdk(facts, wishes)
    except SetupRefused as refused:
        raise CommandRefused(str(refused), FOUND) from refused


def _chosen(plan: SetupPlan, *, restarts: bool) -> list[SetupStep]:
    return [*plan.steps, *([plan.restart] if plan.restart and restarts else [])]


def _apply(site: Site, steps: Sequence[SetupStep], *, quiet: bool) -> None:
    """Run the commands in their order, each shown before; with `quiet` on stderr. Raises CommandRefused for one that fails."""
    restarts = any(each.stops_traffic for each in steps)
    if any(each.is_package for each in steps) and not restarts and site.liveness().state == "alive":
        raise CommandRefused(
            "the package that is missing may restart the ovs-vswitchd that runs here, and stop its traffic: "
            "add --restart, or install it yourself",
            FOUND,
        )
    if not steps and not quiet:
        view.say(_NOTHING)
    tell = view.note if quiet else view.say
    for step in steps:
        tell(f"# {step.name}: {step.why}")
        for command in step.commands:
            tell(command)
            out = sys.stderr if quiet else None
            done = subprocess.run(
                ["sh", "-ec", command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True, check=False
            )
            if done.returncode:
                said = " ".join(done.stderr.split()[-_WORDS:])
                raise CommandRefused(f"{command}: it ended with {done.returncode}: {said}", FOUND)


def _show(plan: SetupPlan, steps: Sequence[SetupStep]) -> None:
    """A script: comments, and commands that can be pasted."""
    for reason in plan.reasons:
        click.echo(view.plain(f"# {reason}"))
    for step in steps:
        click.echo(view.plain(f"# {step.name}: {step.why}"))
        for command in step.commands:
            click.echo(view.plain(command))
    if not steps:
        click.echo(f"# {_NOTHING}")
    if plan.restart and plan.restart not in steps:
        _say_restart(plan)


def _say_restart(plan: SetupPlan) -> None:
    if plan.restart:
        click.echo(view.plain(f"# {_LATER}: {plan.restart.commands[0]}   ({plan.restart.why})"))


def _as_values(plan: SetupPlan) -> dict[str, Any]:
    return {
        "reasons": list(plan.reasons),
        "steps": [{**asdict(step), "commands": list(step.commands)} for step in plan.steps],
        "restart": asdict(plan.restart) if plan.restart else None,
    }

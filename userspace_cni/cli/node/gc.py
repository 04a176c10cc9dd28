"""`gc`: shows what dead calls, absent agents and lost sandboxes left on this node, and has it removed.

`reconcile` decides and does everything, in the agent or in this process, under the same locks. This module asks for it, waits for
the second look and shows the result. It must never remove anything itself.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import click

from userspace_cni.attachment import cleanup
from userspace_cni.attachment.deviations import Deviation, findings
from userspace_cni.attachment.listing import name_of
from userspace_cni.attachment.put_backs import words
from userspace_cni.attachment.reconcile import Reconciliation
from userspace_cni.attachment.records import Record, record_key
from userspace_cni.attachment.spool import Entry
from userspace_cni.base.errors import BadRequest, Unavailable, UserspaceError
from userspace_cni.base.log import bind
from userspace_cni.cli import view
from userspace_cni.cli.agent_client import NoAgent
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE
from userspace_cni.cli.site import NodeCommand, Site, open_site
from userspace_cni.cli.view import Cell
from userspace_cni.cni.request import read_environment, read_network

_WHY: Final[Mapping[str, str]] = {
    "rebooted": "made in an earlier boot: its sandbox is gone",
    "sandbox-gone": "its network namespace is gone, and its pod if it is known to have had one, or that has another sandbox",
    "namespace-gone": "its network namespace is gone, and its pod not known to be: its mounts keep the kubelet from removing it",
    "record-lost": "a port of ours without a record, whose sandbox is gone",
    "foreign": "a port of another installation's state directory",
    "dead-test": "a probe, ping, load or capture ended before it could remove what it made",
}
_UNFINISHED: Final[Mapping[str, str]] = {
    "pending": "ADD died while it leased addresses",
    "applying": "ADD died before it was answered",
    "deleting": "DEL began and has not ended",
}
_COLUMNS: Final = ("ATTACHMENT", "NETWORK", "PORT", "WHY", "WHAT")


NOTHING: Final[Mapping[str, int]] = {}


@dataclass(frozen=True)
class Owner:
    """An attachment, or the run of a command by process and number. `steps`: the kinds of its steps."""

    name: str
    container: str
    ifname: str
    network: str
    port: str
    state: str
    steps: tuple[str, ...]

    @classmethod
    def of(cls, record: Record) -> Self:
        """An attachment, or a run: what it is for as network."""
        port = record.port_ref.name if record.port_ref else ""
        steps = tuple(step.kind for step in record.steps)
        container, ifname, state = record.container_id, record.ifname, str(record.state)
        if record.run:
            container, ifname, state = record.subject["process"], record.run.number, "deleting"
        return cls(name_of(record), container, ifname, record.network, port, state, steps)


@dataclass(frozen=True)
class Leftover:
    """One thing that was left. `key` identifies it in a later look; `action` is what gc does about it, "" for nothing."""

    key: str
    problem: str
    why: str
    action: str
    owner: Owner

    def to_json(self) -> dict[str, Any]:
        whose = dataclasses.asdict(self.owner)
        steps = whose.pop("steps")
        return {**whose, "problem": self.problem, "why": self.why, "action": self.action, "steps": steps}


@dataclass(frozen=True)
class SweepLook:
    """What one look at the node found; `away` is why the switch could not be asked."""

    left: tuple[Leftover, ...]
    away: UserspaceError | None = None

    @property
    def due(self) -> list[Leftover]:
        """The things on which gc acts."""
        return [each for each in self.left if each.action]

    @property
    def code(self) -> int:
        """The exit code: an empty list proves nothing while the switch cannot be asked."""
        return FOUND if self.due else UNREACHABLE if self.away else 0


@click.command(
    "gc",
    cls=NodeCommand,
    examples=(
        "userspace-cni gc --dry-run",
        "userspace-cni gc",
    ),
)
@click.option("--dry-run", is_flag=True, help="Report what is left and what would be done; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def gc_command(ctx: click.Context, dry_run: bool, as_json: bool) -> None:
    """Finish or remove what dead calls and lost sandboxes left, and make again what living attachments lost or others changed.

    This is not the CNI verb GC: it needs no list of valid attachments, and removes only what is proven dead (an ADD that was
    never answered, a DEL that was begun, an attachment of an earlier boot, a sandbox that was gone in two checks, 5 seconds
    apart). Ports of other installations are listed and left alone. The agent does the work if it answers, else this process.

    Exit code: 0 when nothing is left to do, 1 when something is, 3 when the switch could not be asked and nothing else was found.
    """
    site = open_site(ctx)
    with view.progress("looking at records, ports and sandboxes") as show:
        before = look(site)
        if dry_run or not before.due:
            by, actions, after = "", NOTHING, before
        else:
            by, actions = collect(site, show)
            after = look(site)
    if as_json:
        view.show_json(_to_json(before, after, by, actions, dry_run=dry_run))
    elif dry_run or not before.due:
        _show_plan(before)
    else:
        _show_outcome(before, after, by)
    ctx.exit(after.code)


def look(site: Site) -> SweepLook:
    """Find everything that is left on the node, except things on which a call works now."""
    node, journal = site.node, site.node.store.journal
    away = site.switch_problem()
    with bind("error"):  # this command notes once that the switch cannot be asked
        spooled = [_spooled(entry, site) for entry in node.store.spool.entries(keep=True)]
        found = [_left(each) for each in findings(node)]
    left = []
    for each in [*spooled, *found]:
        lock = journal.try_turn_lock(record_key(each.owner.container, each.owner.ifname))
        if lock is not None:
            lock.release()
            left.append(each)
    return SweepLook(tuple(left), away)


def collect(site: Site, show: Callable[[str], None]) -> tuple[str, Mapping[str, int]]:
    """Let the agent act if it answers, else this process; returns who acted, and how often each action was taken.

    Waits for the second look where a finding needs one.
    """
    actions: Counter[str] = Counter()
    by, act = _actor(site, actions)
    show(f"removing ({by})")
    act()
    with bind("error"):
        doubtful = any(isinstance(each, Deviation) and each.needs_proof for each in findings(site.node))
    if doubtful:
        show(f"waiting {site.apart_s:g} s for the second look at what seems to be gone")
        time.sleep(site.apart_s)
        show(f"removing ({by})")
        act()
    return by, actions


def _actor(site: Site, actions: Counter[str]) -> tuple[str, Callable[[], None]]:
    """Who acts, and the function that makes it act."""
    try:
        site.client.problems("healthz")
    except NoAgent:
        pass
    except Unavailable as error:
        view.note(f"done here: {error}")
    else:
        return "the agent", lambda: actions.update(site.client.reconcile())
    reconciliation = Reconciliation(site.node, lambda name: actions.update([name]), site.apart_s)
    return "this process", reconciliation.run


def _left(finding: Deviation) -> Leftover:
    record, problem = finding.record, finding.problem
    why = _UNFINISHED[record.state] if problem == "unfinished" else _WHY.get(problem, "")
    action = "undo " + _kinds(record.steps[::-1])
    if problem == "namespace-gone":
        action = f"undo {view.join([step.summary for step in finding.steps])}, and the rest with the pod, after a second look"
    elif problem == "dead-test":
        action = f"remove {view.join([step.summary for step in record.steps])}"
    elif problem == "lost":
        kinds = view.join(list(dict.fromkeys(step.kind for step in finding.steps)))
        why, action = (
            f"parts of it are gone, closed or dead: {kinds}",
            f"make again: {view.join([step.summary for step in finding.steps])}",
        )
    elif problem == "changed":
        why, action = (
            f"another program has changed it: {words(finding.changes)}",
            "put it back, or later if that was done just now",
        )
    elif problem == "foreign":
        port = record.port_ref
        why, action = f"{why} (store {port.marks.get('store', 'unknown') if port else 'unknown'})", ""
    elif finding.needs_proof:
        action += ", after a second look"
    return Leftover(record.key, problem, why, action, Owner.of(record))


def _spooled(entry: Entry, site: Site) -> Leftover:
    why = "a DEL was called while no agent answered"
    try:
        environment = read_environment(entry.environ, "DEL")
        network = read_network(entry.stdin, "DEL")
    except BadRequest as error:
        environ = entry.environ
        unreadable = Record("deleting", "", environ.get("CNI_CONTAINERID", ""), environ.get("CNI_IFNAME", ""))
        why = f"{why}, and cannot be read: {error}"
        return Leftover(f"spool:{entry.name}", "spooled-del", why, "put it aside", Owner.of(unreadable))
    record = site.node.store.journal.read(environment.container_id, environment.ifname)
    if record is None:
        action = "undo what is left of it without a record"
    elif record.network != network.name or cleanup.is_newer(record, entry.called, site.node.store):
        action = "forget it: the attachment was made after that call"
    else:
        action = "undo " + _kinds(record.steps[::-1])
    shown = record or Record("deleting", network.name, environment.container_id, environment.ifname)
    return Leftover(f"spool:{entry.name}", "spooled-del", why, action, Owner.of(shown))


def _kinds(steps: Sequence[Any]) -> str:
    return view.join([step.kind for step in steps], "its record")


def _to_json(before: SweepLook, after: SweepLook, by: str, actions: Mapping[str, int], *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "by": by,
        "actions": dict(actions),
        "found": [each.to_json() for each in before.left if each.action],
        "remaining": [each.to_json() for each in after.due],
        "foreign": [each.to_json() for each in after.left if not each.action],
        "switch": str(after.away or ""),
    }


def _show_plan(found: SweepLook) -> None:
    if found.left:
        view.show_table(_COLUMNS, [_row(each, each.action or Cell("left alone", "dim")) for each in found.left])
    _conclude(found, f"{len(found.due)} to do" if found.due else "nothing to do")


def _show_outcome(before: SweepLook, after: SweepLook, by: str) -> None:
    """Show what the first look found with its outcome, and what is new since."""
    remaining = {each.key: each for each in after.left}
    known = {each.key for each in before.left}
    rows = [_row(each, _outcome(each, remaining)) for each in before.left]
    rows += [_row(each, Cell(f"new: {each.action}", "red")) for each in after.due if each.key not in known]
    view.show_table(_COLUMNS, rows)
    done = sum(each.key not in remaining for each in before.due)
    _conclude(after, f"{done} done by {by}" + (f", {len(after.due)} left" if after.due else ", nothing left"))


def _outcome(each: Leftover, remaining: Mapping[str, Leftover]) -> Cell:
    if not each.action:
        return Cell("left alone", "dim")
    if each.key not in remaining:
        return Cell(f"done: {each.action.removesuffix(', after a second look')}", "green")
    return Cell(f"left: {remaining[each.key].action}", "red")


def _conclude(found: SweepLook, text: str) -> None:
    view.note(text)
    if found.away:
        view.note(f"the switch cannot be asked, so ports without a record were not looked for: {found.away}")


def _row(each: Leftover, what: Cell | str) -> list[Cell | str]:
    return [each.owner.name, each.owner.network, each.owner.port, each.why, what]

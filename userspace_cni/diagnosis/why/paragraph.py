"""A diagnosis as one paragraph for people, and as JSON. Pure: how it is printed is the command line's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from userspace_cni.base.findings import Finding
from userspace_cni.diagnosis.rendering import Keys, as_json
from userspace_cni.diagnosis.why.causes import Diagnosis

OF_CAUSES: Final[Keys] = {each: each for each in ("name", "severity", "message", "why", "remedy")}
_COMMAND: Final = re.compile(r"""`((?:[^`'"]|'[^']*'|"[^"]*")+)`""")
_UNSEEN: Final = "What is not seen from here: the application beyond its socket, and the network beyond the bridge's uplink."


def sentences(diagnosis: Diagnosis) -> list[str]:
    """Its sentences: what is wrong, why it matters, what to do, what else was found, what is well, what is not known."""
    causes = [each for each in diagnosis.causes if each.severity != "note"]
    notes = diagnosis.causes[len(causes) :]
    said = [*_first(causes[0])] if causes else ["Nothing wrong was found."]
    if causes[1:]:
        said.append(f"Also found: {_joined(causes[1:])}.")
    if notes:
        said.append(f"Worth knowing: {_joined(notes)}.")
    if diagnosis.well:
        said.append(f"Checked and without a fault: {', '.join(diagnosis.well)}.")
    said += [f"Could not be asked: {what}, because {_ended(why)}" for what, why in diagnosis.unasked]
    return said if causes else [*said, _UNSEEN]


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Its findings, the cause first; what follows from them; what was looked at and is well, and what could not be asked."""
    return {
        "name": diagnosis.name,
        "findings": list(map(_finding_json, diagnosis.causes)),
        "consequences": list(map(_finding_json, diagnosis.consequences)),
        "well": list(diagnosis.well),
        "unasked": [{"what": what, "because": why} for what, why in diagnosis.unasked],
    }


def commands_of(remedy: str) -> list[str]:
    """The commands that a remedy has in backquotes, in their order; [] where one has no end.

    A name that others have given, as of a link in a pod, is quoted for a shell: a backquote in it begins and ends no command.
    """
    return [] if "`" in _COMMAND.sub("", remedy) else _COMMAND.findall(remedy)


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {**as_json(finding, OF_CAUSES), "commands": commands_of(finding.remedy)}


def _first(finding: Finding) -> list[str]:
    remedy = [f"What to do: {_ended(finding.remedy)}"] if finding.remedy else []
    return [_ended(_capital(_quoted(finding.message))), *([_ended(_capital(finding.why))] if finding.why else []), *remedy]


def _joined(findings: Sequence[Finding]) -> str:
    return "; ".join(f"{_quoted(each.message)} ({each.remedy})" if each.remedy else _quoted(each.message) for each in findings)


def _quoted(message: str) -> str:
    """What was found, which has texts of others: a command between backticks is ours alone, and none is in a message."""
    return message.replace("`", "'")


def _capital(text: str) -> str:
    """With a capital, unless it begins with a name of a program."""
    return text if text.startswith(("ovs", "ovn", "external_ids")) else text[:1].upper() + text[1:]


def _ended(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."

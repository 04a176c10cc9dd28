"""Whether OVN judges IP fragments by the ports of their connection.

A fragment itself has no ports for an ACL in the userspace datapath: a rule that lets a port through drops it. From OVN 26.03 on
`options:acl_ct_translation` of NB_Global makes ACLs look at what connection tracking knows instead. What an administrator has set
there stays.
"""

from __future__ import annotations

import re
from typing import Any, Final

from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import GLOBAL
from userspace_cni.ovsdb.column_values import value_of
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command

TRANSLATION: Final = "acl_ct_translation"
_SINCE: Final = (26, 3)
_VERSION: Final = "northd_internal_version"


def read_version(session: NorthboundSession) -> tuple[int, ...]:
    """The version of OVN whose northd serves the database, () where that is not known. Within `look`."""
    return _version("".join(_options(row).get(_VERSION, "") for row in session.rows(GLOBAL)))


def judges_fragments(session: NorthboundSession) -> bool:
    """Whether it does. Within `look`."""
    return read_version(session) >= _SINCE and any(_options(row).get(TRANSLATION) == "true" for row in session.rows(GLOBAL))


def may_judge_fragments(session: NorthboundSession) -> bool:
    """Whether it would, if someone set the option, and no one has said anything about it. Within `look`."""
    return read_version(session) >= _SINCE and not any(TRANSLATION in _options(row) for row in session.rows(GLOBAL))


class JudgeFragments(Command[NorthboundSession]):
    """Sets the option."""

    def __init__(self, session: NorthboundSession) -> None:
        super().__init__(session)
        self.target = f"{GLOBAL} options:{TRANSLATION}"

    def run_idl(self, txn: Draft) -> None:
        """Set it where `may_judge_fragments` still holds."""
        if may_judge_fragments(self.api):
            row = self.api.root()
            txn.verify(row, "options")
            txn.set_keys(row, "options", {TRANSLATION: "true"})


def _options(row: Any) -> dict[str, str]:
    options: dict[str, str] = value_of(row, "options")
    return options


def _version(text: str) -> tuple[int, ...]:
    """OVN's version out of what northd writes, as 23.03.1-20.27.0-70.6."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text)
    return tuple(int(number or 0) for number in match.groups()) if match else ()

"""Where each setting in force comes from, and all that is wrong in a file or in the environment: for people, not for verbs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from userspace_cni.base.errors import BadRequest, UserspaceError
from userspace_cni.base.misspelt import guess_word
from userspace_cni.base.settings import TABLE, TABLES_OF_FILE, files, find_variable, load, parse_file, read_key, variables_of
from userspace_cni.base.whereabouts import PREFIX

_OF_KUBERNETES: Final = re.compile(r"(.*_)?(SERVICE_HOST|(SERVICE_)?PORT)(_.*)?")
"""Variables that the kubelet sets in pods beside a Service of that name."""
_TABLE: Final = re.compile(r"\s*\[")


@dataclass(frozen=True)
class SettingInForce:
    """A setting. `value` and `default` as in a file: of the administrator's tables a list of them. `name`: file or variable."""

    key: str
    value: Any
    default: Any
    source: Literal["default", "file", "environment"]
    name: str = ""
    line: int = 0

    @property
    def shown_value(self) -> str:
        """The value as it is written in a file; of tables how many there are."""
        if self.key in TABLES_OF_FILE:
            return f"{len(self.value)} tables" if len(self.value) != 1 else "1 table"
        return json.dumps(self.value, ensure_ascii=False)

    @property
    def shown_source(self) -> str:
        if self.source == "file":
            return f"{self.name}:{self.line}" if self.line else self.name
        return f"${self.name}" if self.source == "environment" else "default"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _ParsedFile:
    path: str
    raw: Mapping[str, Any]
    text: str


def read_in_force(environ: Mapping[str, str]) -> list[SettingInForce]:
    """Every setting, in the order of the table, those of the administrator's tables last. Raises as `load` does."""
    settings = load(environ)
    named = bool(environ.get(f"{PREFIX}CONFIG"))
    parsed = [_ParsedFile(path, *parse_file(path, required=named)) for path in files(environ)]
    found = []
    for key, (default, _) in TABLE.items():
        value = _plain(getattr(settings, key))
        if variable := find_variable(key, environ):
            found.append(SettingInForce(key, value, _plain(default), "environment", variable))
        else:
            found.append(_of_file(key, value, _plain(default), parsed))
    return found + [_of_file(key, [], [], parsed) for key in TABLES_OF_FILE]


def find_misspelt_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with our prefix that have no effect and are like one that has, each with the question whether that is meant.

    Others may be of other programs: Kubernetes sets some with this prefix.
    """
    ours = [f"{PREFIX}CONFIG", *(name for key in TABLE for name in variables_of(key))]
    known = [name.removeprefix(PREFIX) for name in ours if name.startswith(PREFIX)]  # the prefix is like itself
    unknown = [name.removeprefix(PREFIX) for name in environ if name.startswith(PREFIX) and name not in ours]
    near = {name: guess_word(name, known) for name in unknown if not _OF_KUBERNETES.fullmatch(name)}
    return {f"{PREFIX}{name}": f"did you mean '{PREFIX}{meant}'?" for name, meant in near.items() if meant}


def find_faults(path: str) -> list[tuple[int, UserspaceError]]:
    """All that is wrong in a file, each with its line, 0 where that is not known. Raises Unavailable."""
    try:
        raw, text = parse_file(path, required=True)
    except BadRequest as error:
        return [(0, error)]
    faults: list[tuple[int, UserspaceError]] = []
    for key, value in raw.items():
        try:
            read_key(key, value, path)
        except BadRequest as error:
            faults.append((line_of(key, text), error))
    return faults


def line_of(key: str, text: str) -> int:
    """The line of a file on which the key is first, before any table, or its first table begins; 0 if it is not found."""
    own = re.compile(rf"""\s*(?:["']?{re.escape(key)}["']?\s*[=.]|\[\[?\s*["']?{re.escape(key)}["']?\s*[\].])""")
    below = False
    for number, line in enumerate(text.splitlines(), 1):
        table = bool(_TABLE.match(line))
        if own.match(line) and (table or not below):
            return number
        below = below or table
    return 0


def _of_file(key: str, value: Any, default: Any, parsed: list[_ParsedFile]) -> SettingInForce:
    for each in reversed(parsed):
        if key in each.raw:
            told = each.raw[key] if key in TABLES_OF_FILE else value
            return SettingInForce(key, told, default, "file", each.path, line_of(key, each.text))
    return SettingInForce(key, value, default, "default")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

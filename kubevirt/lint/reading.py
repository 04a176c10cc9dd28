"""Documents that people wrote, read for judging: nothing in them is believed, and nothing in them can make the judge fail.

A Spot is one value with its path. What is asked of it and is of another type than it can be counts as absent, and is reported
once as `bad-input` at its path. It never raises for what a document holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kubevirt.kubevirt_traps import Severity, Trap
from userspace_cni.pod.quantity import amount

T = TypeVar("T")
_KINDS: Final = ((bool, "true or false"), (str, "a string"), (int | float, "a number"), (list, "a list"), (Mapping, "an object"))
_SHOWN_MAX: Final = 60


@dataclass
class DocumentReport:
    """What is found in one document, each finding once. `where`: file and object; `file`: the file alone."""

    where: str
    file: str = ""
    found: dict[Trap, None] = field(default_factory=dict)

    def add(self, name: str, severity: Severity, message: str, remedy: str, path: str = "") -> None:
        self.found[Trap(name, severity, self.where, message, remedy, path)] = None


@dataclass(frozen=True)
class DocumentValue:
    """A value of a document and the path to it; None for what is not there."""

    value: Any
    path: str
    report: DocumentReport

    def child(self, *names: str) -> DocumentValue:
        """The object below those names; one that is absent is empty."""
        spot = self
        for name in names:
            spot = DocumentValue(spot._typed(name, Mapping, "an object"), spot.at(name), spot.report)
        return spot

    def items(self, name: str) -> list[DocumentValue]:
        found = []
        for number, item in enumerate(self._typed(name, list, "a list") or []):
            spot = DocumentValue(item, f"{self.at(name)}[{number}]", self.report)
            if isinstance(item, Mapping):
                found.append(spot)
            else:
                spot.is_odd("an object")
        return found

    def texts(self, name: str) -> list[str]:
        return [item for item in self._typed(name, list, "a list") or [] if isinstance(item, str)]

    def text(self, name: str) -> str:
        """A string; "" when absent."""
        return self._typed(name, str, "a string") or ""

    def number(self, name: str) -> int | None:
        found: int | None = self._typed(name, int, "a whole number")
        return found

    def flag(self, name: str) -> bool:
        return bool(self._typed(name, bool, "true or false"))

    def amount(self, name: str) -> int | None:
        """An amount as Kubernetes writes it, in whole units; None when absent."""
        value = self.get(name)
        found = amount(value)
        if value is not None and found is None:
            DocumentValue(value, self.at(name), self.report).is_odd("an amount, as 2Gi")
        return found

    def json(self, name: str) -> DocumentValue | None:
        """What the JSON in a string says; None without any."""
        text = self.text(name)
        if not text:
            return None
        spot = DocumentValue(text, self.at(name), self.report)
        try:
            return DocumentValue(json.loads(text), spot.path, self.report)
        except (ValueError, RecursionError) as error:
            spot.find(
                "bad-input", "error", f"it is not JSON: {str(error)[:100]}", "correct the text, which is JSON within a string"
            )
            return None

    def has(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> Any:
        return self.value.get(name) if isinstance(self.value, Mapping) else None

    def at(self, name: str) -> str:
        """The path of what is below that name."""
        label = name if name.replace("-", "").replace("_", "").isalnum() else f"[{name[:_SHOWN_MAX]!r}]"
        return f"{self.path}{label}" if label.startswith("[") else f"{self.path}.{label}".removeprefix(".")

    def find(self, name: str, severity: Severity, message: str, remedy: str) -> None:
        self.report.add(name, severity, message, remedy, self.path)

    def is_odd(self, wanted: str) -> None:
        """Report that it is of another type than it can be."""
        message = f"it is {kind_of(self.value)}, and must be {wanted}"
        self.find("bad-input", "error", message, "correct it: `kubectl explain` of the object's kind tells what each field takes")

    def _typed(self, name: str, kind: Any, wanted: str) -> Any:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            DocumentValue(value, self.at(name), self.report).is_odd(wanted)
            return None
        return value


def kind_of(value: object) -> str:
    """Its type, as people call it."""
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "null")


def fold_keys(value: object) -> dict[str, Any]:
    """An object with its keys in lower case, as the plugin reads them; empty for anything else."""
    if not isinstance(value, Mapping):
        return {}
    return {key.lower(): item for key, item in value.items() if isinstance(key, str)}

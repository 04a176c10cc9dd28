"""Takes secrets out of what is collected: by what a text looks like, and by the secrets that this node is known to have. Pure.

What is collected is chosen before (`known_keys`, the table of items); this is the second fence. It leaves out too much rather
than too little. A text is read a bounded number of times, whatever it holds.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, quote_plus

REDACTED: Final = "(redacted)"
_NAME: Final = (
    r"(?:pass(?:word|wd|phrase|code)|(?<![a-z])pass(?![a-z])|pwd|(?<![a-z])pw(?![a-z])|secret|token|credential|authorization|bearer|psk"
    r"|(?:api|private|access|client|signing|encryption|ssh|pre-?shared)[-_.]?key|key[-_.]?data|certificate[-_a-z]{0,12}data)"
)
"""What the name of a secret has in it."""
_VALUE: Final = r"""(\\*"(?:\\.|[^"\\])*"?|\\*'[^']*'?|[^\s,;&}\]"']+)"""
_CREDENTIAL: Final = re.compile(_NAME, re.IGNORECASE)
_OPTION: Final = re.compile(rf"--?[\w-]*{_NAME}[\w-]*", re.IGNORECASE)
_PEM: Final = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL)
_RULES: Final[tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...]] = (
    (("://",), re.compile(r"(://)[^\s\"'<>@/:]{1,128}(?::[^\s\"'<>]{0,256})?@"), rf"\1{REDACTED}@"),
    (("bearer",), re.compile(r"(\bbearer\s{1,4})[A-Za-z0-9._~+/=-]{4,}", re.IGNORECASE), rf"\1{REDACTED}"),
    (("basic",), re.compile(r"(\bbasic\s{1,4})(?=[a-z0-9+/]*[A-Z0-9=])[A-Za-z0-9+/=_-]{6,}", re.IGNORECASE), rf"\1{REDACTED}"),
    (
        ("pass", "pw", "secret", "token", "credential", "authorization", "bearer", "psk", "key", "data"),
        re.compile(rf"({_NAME}[\w.-]{{0,40}}\\*[\"']?\s{{0,4}}(?:[:=]|,(?=\s{{0,4}}[\"']))\s{{0,4}}){_VALUE}", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (
        ("--",),
        re.compile(rf"((?<![\w-])--?[\w-]{{0,40}}{_NAME}[\w-]{{0,40}}\s{{1,4}})(?!-){_VALUE}", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (("eyj",), re.compile(r"\beyJ[\w-]{5,4096}\.[\w-]+(?:\.[\w-]*)?"), REDACTED),
    (("akia", "asia"), re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), REDACTED),
    (("gh",), re.compile(r"\bgh[pousr]_\w{20,}"), REDACTED),
    (("glpat-", "sk-"), re.compile(r"(?<![\w-])(?:glpat|sk)-[\w-]{16,}"), REDACTED),
    (("xox",), re.compile(r"\bxox[abprs]-[\w-]{10,}"), REDACTED),
)
"""The words without one of which, in small letters, a line cannot match; what is looked for; what comes into its place."""
_LONG: Final = 40
"""Characters of a word that looks like a key in base64."""
_ENCODED: Final = re.compile(rf"(?<![\w./+@-])[A-Za-z0-9+_-][A-Za-z0-9+/_-]{{{_LONG - 1},}}={{0,2}}(?![\w./+@-])")
_SHORTEST: Final = 6
_RANDOM: Final = re.compile(r"^(?=.*[A-Za-z])(?=.*[0-9])[^/]{8,}$")
_SECRETS_MAX: Final = 2000


def is_credential(name: str) -> bool:
    """Whether the value of this name is a secret: a key of an object, a variable, an option."""
    return bool(_CREDENTIAL.search(name))


class Redactor:
    """What one archive may not have. `learn` tells it a secret, which then is left out wherever it stands, in what form ever."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._forms: tuple[str, ...] | None = None

    def learn(self, value: object) -> None:
        """A secret, or an object or list of secrets. Short words that are letters alone are not: they are anywhere."""
        if isinstance(value, dict | list | tuple):
            for each in value.values() if isinstance(value, dict) else value:
                self.learn(each)
        elif isinstance(value, str):
            text = value.strip()
            long_enough = (len(text) >= _SHORTEST and not text.isalpha()) or len(text) > 2 * _SHORTEST
            if long_enough and text != REDACTED and len(self._secrets) < _SECRETS_MAX:
                self._secrets.add(text)
                self._forms = None

    def clean_value(self, value: Any) -> Any:
        """JSON values without what looks secret; what is secret by its name is learnt."""
        if isinstance(value, dict):
            return {self.clean(str(key)): self._named(str(key), each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return self._items(value)
        return self.clean(value) if isinstance(value, str) else value

    def clean(self, text: str) -> str:
        """A text without what looks secret."""
        if "-----BEGIN" in text:
            text = _PEM.sub(REDACTED, text)
        return "".join(map(self._line, text.splitlines(keepends=True)))

    def strike(self, text: str) -> str:
        """A text without the secrets that were learnt; after everything has been cleaned."""
        for form in self._all_forms():
            if form in text:
                text = text.replace(form, REDACTED)
        return text

    def _named(self, name: str, value: Any) -> Any:
        if is_credential(name) and value not in (None, "", [], {}) and not isinstance(value, bool):
            self.learn(value)
            return REDACTED
        return self.clean_value(value)

    def _items(self, values: list[Any] | tuple[Any, ...]) -> list[Any]:
        """Of arguments, the one behind `--token` is one, too."""
        found: list[Any] = []
        for number, value in enumerate(values):
            before = values[number - 1] if number else None
            if isinstance(value, str) and isinstance(before, str) and _OPTION.fullmatch(before):
                self.learn(value)
                found.append(REDACTED)
            else:
                found.append(self.clean_value(value))
        return found

    def _line(self, line: str) -> str:
        small = line.lower()
        for words, pattern, instead in _RULES:
            if any(word in small for word in words):
                line = pattern.sub(self._learning(instead), line)
        if any(len(word) >= _LONG for word in line.split()):
            line = _ENCODED.sub(_unless_encoded, line)
        return line

    def _learning(self, instead: str) -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            found = match[2].strip("\\\"'") if match.re.groups > 1 else ""
            if _RANDOM.search(found):  # what a line of a log calls a secret may be any word
                self.learn(found)
            return match.expand(instead)

        return replace

    def _all_forms(self) -> tuple[str, ...]:
        """Every form of every secret, the longest first: a short one may be a part of it."""
        if self._forms is None:
            forms = {form for secret in self._secrets for form in _forms_of(secret) if len(form) >= _SHORTEST}
            self._forms = tuple(sorted(forms, key=len, reverse=True))
        return self._forms


def _unless_encoded(match: re.Match[str]) -> str:
    """Of a word of these letters, what looks like base64 is left out: names and digests in hexadecimal stay."""
    word = match[0]
    mixed = any(map(str.isupper, word)) and any(map(str.islower, word)) and any(map(str.isdigit, word))
    return REDACTED if mixed else word


def _forms_of(secret: str) -> set[str]:
    """The secret as it is, as JSON and URLs spell it, and in base64 and hexadecimal; in base64 wherever in a text it begins."""
    raw = secret.encode("utf-8", "surrogateescape")
    quoted = {quote(raw, safe=""), quote(raw), quote_plus(raw)}
    forms = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], raw.hex(), raw.hex().upper()}
    forms |= quoted | {re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), each) for each in quoted}
    for offset, cut in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(b"\0" * offset + raw).decode("ascii").rstrip("=")
        whole = encoded[cut : -1 if (offset + len(raw)) % 3 else None]
        forms |= {whole, whole.replace("+", "-").replace("/", "_"), quote(whole, safe="")}
    return forms

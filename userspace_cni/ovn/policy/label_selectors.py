"""Selectors of labels, as Kubernetes has them. Pure.

A selector that cannot be read raises: what is not understood must not select less than its author meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig

Labels = Mapping[str, str]
Anchor = tuple[str, str | None]
"""A label by key and value; without a value, by its key alone."""

IN: Final = "In"
NOT_IN: Final = "NotIn"
EXISTS: Final = "Exists"
ABSENT: Final = "DoesNotExist"
TERMS_MAX: Final = 1024
"""Keys and values of one selector."""


@dataclass(frozen=True, slots=True)
class LabelTerm:
    """What a label has to be. `values`: sorted; () for operators without any."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Labels) -> bool:
        """Whether labels are as it asks."""
        if self.operator == IN:
            return labels.get(self.key) in self.values
        if self.operator == NOT_IN:
            return labels.get(self.key) not in self.values
        return (self.key in labels) == (self.operator == EXISTS)


@dataclass(frozen=True)
class LabelSelector:
    """All terms have to hold. Without a term it selects everything."""

    terms: tuple[LabelTerm, ...] = ()

    def selects(self, labels: Labels) -> bool:
        """Whether something with these labels is selected."""
        return all(each.holds(labels) for each in self.terms)

    @cached_property
    def anchors(self) -> tuple[Anchor, ...]:
        """Labels of which all that is selected has at least one; () where there are no such."""
        best: tuple[Anchor, ...] = ()
        for term in self.terms:
            if term.operator == IN and (not best or best[0][1] is None or len(term.values) < len(best)):
                best = tuple((term.key, value) for value in term.values)
            elif term.operator == EXISTS and not best:
                best = ((term.key, None),)
        return best

    def __str__(self) -> str:
        return "; ".join(f"{each.key} {each.operator} {','.join(each.values)}".rstrip() for each in self.terms)


EVERYTHING: Final = LabelSelector()


def read_selector(said: object) -> LabelSelector:
    """The selector that an object says. Raises InvalidConfig."""
    fields = _object(said, "a selector", ("matchLabels", "matchExpressions"))
    equal, expressions = fields.get("matchLabels") or {}, fields.get("matchExpressions") or []
    if not isinstance(equal, Mapping) or not isinstance(expressions, list):
        raise InvalidConfig("a selector's matchLabels is no object, or its matchExpressions no list")
    if len(equal) + len(expressions) > TERMS_MAX:
        raise InvalidConfig(f"a selector has more than {TERMS_MAX} terms")
    terms = {LabelTerm(_text(key), IN, (_text(value),)) for key, value in equal.items()}
    terms |= {_read_expression(each) for each in expressions}
    if sum(1 + len(each.values) for each in terms) > TERMS_MAX:
        raise InvalidConfig(f"a selector has more than {TERMS_MAX} keys and values")
    return LabelSelector(tuple(sorted(terms, key=lambda each: (each.key, each.operator, each.values))))


def _read_expression(said: object) -> LabelTerm:
    fields = _object(said, "a match expression", ("key", "operator", "values"))
    operator, values = fields.get("operator"), fields.get("values") or []
    if operator not in (IN, NOT_IN, EXISTS, ABSENT) or not isinstance(values, list):
        raise InvalidConfig(f"a match expression's operator is {str(operator)[:40]!r}, or its values are no list")
    if len(values) > TERMS_MAX or bool(values) != (operator in (IN, NOT_IN)):
        raise InvalidConfig(f"a match expression with {operator} has {len(values)} values")
    return LabelTerm(_text(fields.get("key")), operator, tuple(sorted({_text(each) for each in values})))


def _object(said: object, what: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(said, Mapping):
        raise InvalidConfig(f"{what} is no object")
    if unknown := said.keys() - set(known):
        raise InvalidConfig(f"{what} has a key that is not known: {min(map(str, unknown))[:40]!r}")
    return said


def _text(said: object) -> str:
    if not isinstance(said, str) or len(said) > 400:
        raise InvalidConfig("a label's key or value is no text, or longer than any can be")
    return said

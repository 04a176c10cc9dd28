"""Admission policies as the API server applies them: their CEL is evaluated by CEL's own implementation in C++.

Debian's API server is older than admission policies. What is here of its rules: which requests a policy is about, and that an
expression which fails refuses the request where `failurePolicy` is Fail. Objects have no types here: to read
a field that is not there is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cel_expr_python import cel

_ENVIRONMENT = cel.NewEnv(
    variables=dict.fromkeys(("object", "oldObject", "request", "variables", "self", "device"), cel.Type.DYN)
)


class ExpressionError(Exception):
    """An expression that cannot be evaluated on this request."""


@dataclass(frozen=True)
class AdmissionRequest:
    """A write as the API server shows it to policies. `subresource` as "status"; `node`: of the token, "" for none."""

    resource: str
    operation: str
    new: Mapping[str, Any] | None
    old: Mapping[str, Any] | None
    user: str = ""
    node: str = ""
    group: str = ""
    version: str = "v1"
    subresource: str = ""

    @property
    def data(self) -> dict[str, Any]:
        extra = {"authentication.kubernetes.io/node-name": [self.node]} if self.node else {}
        request = {
            "operation": self.operation,
            "resource": {"group": self.group, "version": self.version, "resource": self.resource},
            "userInfo": {"username": self.user, "extra": extra},
        }
        return {"object": self.new, "oldObject": self.old, "request": request, "variables": {}}


@dataclass(frozen=True)
class AdmissionPolicy:
    """A ValidatingAdmissionPolicy or a MutatingAdmissionPolicy, by its spec."""

    spec: Mapping[str, Any]

    def is_about(self, asked: AdmissionRequest) -> bool:
        """Whether the policy applies. Raises ExpressionError where none of its conditions is false, and one fails."""
        if not any(_matches(rule, asked) for rule in self.spec["matchConstraints"]["resourceRules"]):
            return False
        errors = []
        for condition in self.spec.get("matchConditions", ()):
            try:
                if not evaluated(condition["expression"], asked.data):
                    return False
            except ExpressionError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return True

    def refusals(self, asked: AdmissionRequest) -> list[str]:
        """What the policy says against the request; [] if it has nothing against it, or does not apply."""
        assert self.spec["failurePolicy"] == "Fail"
        try:
            if not self.is_about(asked):
                return []
            data = asked.data
            for each in self.spec.get("variables", ()):
                data["variables"][each["name"]] = evaluated(each["expression"], data)
            return [_told(each, data) for each in self.spec["validations"] if not evaluated(each["expression"], data)]
        except ExpressionError as error:
            return [str(error)]


def _told(validation: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    said = validation.get("messageExpression")
    return str(evaluated(said, data)) if said else str(validation["message"])


def _matches(rule: Mapping[str, Sequence[str]], asked: AdmissionRequest) -> bool:
    name = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
    wanted = {"apiGroups": asked.group, "apiVersions": asked.version, "operations": asked.operation, "resources": name}
    return all("*" in rule[key] or value in rule[key] for key, value in wanted.items())


def evaluated(expression: str, data: Mapping[str, Any]) -> Any:
    """The value of a CEL expression with the variables `data`; a schema's rules have `self`, selectors of claims
    `device`. Raises ExpressionError."""
    value = _ENVIRONMENT.compile(expression).eval(data=data)
    if value.type() == cel.Type.ERROR:
        raise ExpressionError(f"expression '{expression}' resulted in error: {value.plain_value()}")
    return value.plain_value()

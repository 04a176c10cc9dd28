"""Single requests about objects: read, write, delete. Each is bounded; none is tried again here.

What is sent is a plain object; apiVersion, kind and name are the resource's. A merge patch or a replacement that carries
metadata.resourceVersion is refused (Conflict) when another writer was first, so that no change is lost. With server-side apply
each manager owns the fields that it has applied: what it no longer applies is removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Conflict, NoSuchObject, NoSuchResource, NotAllowed, ObjectRefused, Unavailable
from userspace_cni.kube.credentials import APPLY_PATCH, MERGE_PATCH, REQUEST_LIMIT_S, ApiAnswer, ApiSession, TooLong
from userspace_cni.kube.list_pages import page_of
from userspace_cni.kube.resources import ApiResource

PAGE: Final = 100
_TRIES: Final = 3


class Objects:
    """Reads and writes objects under one account; safe to use from several threads.

    Every method raises Unavailable for what may succeed later, Conflict when another writer was first, and ObjectRefused for what
    does not succeed by asking again; InvalidConfig for a name that is none.
    """

    def __init__(self, session: ApiSession) -> None:
        self._session = session

    def get(self, resource: ApiResource, name: str) -> dict[str, Any] | None:
        """The object as the server has it; None when there is none, or no such resource."""
        answer = self._ask("GET", resource.path(name))
        if answer.status == 404:
            return None
        return self._checked(answer, f"reading {resource.title} {name}", "get", resource)

    def list(self, resource: ApiResource, selector: str = "", fields: str = "") -> Sequence[dict[str, Any]]:
        """All objects of the resource with these labels and fields ("a=b,c"), of one moment.

        A missing resource is NoSuchResource; refused, too, is an answer that is no list of them.
        """
        selected = f"labelSelector={quote(selector, safe='')}&" if selector else ""
        selected += f"fieldSelector={quote(fields, safe='')}&" if fields else ""
        what, size = f"listing {resource.title}", PAGE
        for _ in range(_TRIES):
            found: list[dict[str, Any]] = []
            token = ""
            while True:
                more = f"&continue={quote(token, safe='')}" if token else ""
                try:
                    answer = self._ask("GET", f"{resource.path()}?{selected}limit={size}{more}")
                except TooLong:
                    size = max(1, size // 4)
                    break
                if answer.status == 410:
                    break  # the server has forgotten the moment of the first page
                body = self._checked(answer, what, "list", resource)
                try:
                    page = page_of(body, resource)
                except (KeyError, TypeError, AttributeError, ValueError):
                    look = f"does {self._session.account} name an API server?"
                    raise ObjectRefused(f"{what}: the answer is no list of them", look) from None
                found += page.items
                token = page.token
                if not token:
                    return found
        raise Unavailable(f"{what}: it could not be read to its end", "try again later")

    def apply(
        self,
        resource: ApiResource,
        name: str,
        body: Mapping[str, Any],
        *,
        manager: str,
        force: bool = True,
        subresource: str = "",
    ) -> dict[str, Any]:
        """Server-side apply: make the object if need be, and have in it what `body` says as the fields of `manager`.

        `force`: take over fields that other managers own; without it they are a Conflict. Gives the object as it is then.
        """
        path = resource.path(name, subresource=subresource) + _as_manager(manager, force=force)
        answer = self._ask("PATCH", path, _addressed(resource, name, body), APPLY_PATCH)
        return self._checked(answer, f"applying {resource.title} {name}", "patch", resource)

    def dry_run(self, resource: ApiResource, name: str, body: Mapping[str, Any], *, manager: str, force: bool) -> dict[str, Any]:
        """As `apply`, by the server's dry run: all of it is judged, admission too, and nothing is stored.

        Gives the object as it would be; its resourceVersion says nothing.
        """
        path = f"{resource.path(name)}{_as_manager(manager, force=force)}&dryRun=All"
        answer = self._ask("PATCH", path, _addressed(resource, name, body), APPLY_PATCH)
        return self._checked(answer, f"applying {resource.title} {name} as a dry run", "patch", resource)

    def create(self, resource: ApiResource, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object. Raises Conflict when there is one of that name."""
        answer = self._ask("POST", resource.path(), _addressed(resource, name, body))
        return self._checked(answer, f"creating {resource.title} {name}", "create", resource)

    def replace(self, resource: ApiResource, name: str, body: Mapping[str, Any], *, subresource: str = "") -> dict[str, Any]:
        """Put `body` in the object's place; its metadata.resourceVersion must be that which was read, else Conflict."""
        answer = self._ask("PUT", resource.path(name, subresource=subresource), _addressed(resource, name, body))
        return self._checked(answer, f"replacing {resource.title} {name}", "update", resource)

    def merge(self, resource: ApiResource, name: str, patch: Mapping[str, Any], *, subresource: str = "") -> dict[str, Any]:
        """Merge `patch` into the object (RFC 7386: None removes a key). Gives the object as it is then."""
        answer = self._ask("PATCH", resource.path(name, subresource=subresource), patch, MERGE_PATCH)
        return self._checked(answer, f"changing {resource.title} {name}", "patch", resource)

    def delete(self, resource: ApiResource, name: str, *, uid: str = "", version: str = "") -> bool:
        """Delete the object; False when there is none. `uid`: only that one, `version`: only as it was read, else Conflict."""
        only = {key: value for key, value in (("uid", uid), ("resourceVersion", version)) if value}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", **({"preconditions": only} if only else {})}
        answer = self._ask("DELETE", resource.path(name), options)
        if answer.status == 404:
            return False
        self._checked(answer, f"deleting {resource.title} {name}", "delete", resource)
        return True

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, patch: str = MERGE_PATCH) -> ApiAnswer:
        return self._session.request(method, path, Deadline.after(REQUEST_LIMIT_S), body, patch)

    def _checked(self, answer: ApiAnswer, what: str, verb: str, resource: ApiResource) -> dict[str, Any]:
        """The body of a good answer. Raises as the methods say."""
        if answer.status in (200, 201, 202) and answer.body:
            return answer.body
        account = self._session.account
        if answer.status == 409:
            raise Conflict(f"{what}: another writer was first (409)", "read it again")
        if answer.status in (401, 403):
            needed = f"the account needs the verb {verb} on {resource.title}"
            raise NotAllowed(f"{what}: not allowed ({answer.status}) with {account}{answer.said}", needed)
        if answer.status == 404:
            kind = NoSuchResource if verb == "list" else NoSuchObject
            raise kind(f"{what}: there is no such object, or no such resource (404)", "kubectl get crd")
        if answer.status in (400, 422):
            raise ObjectRefused(
                f"{what}: the object is not valid by the server's schema ({answer.status}){answer.said}",
                "is the schema of deploy/cluster older?",
            )
        raise ObjectRefused(f"{what}: unexpected answer {answer.status}{answer.said}", f"does {account} name an API server?")


def _as_manager(manager: str, *, force: bool) -> str:
    """The options of server-side apply."""
    return f"?fieldManager={quote(manager, safe='')}&force={'true' if force else 'false'}"


def _addressed(resource: ApiResource, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The object with what every request must say of it."""
    metadata = {**(body.get("metadata") or {}), "name": name, **({"namespace": resource.namespace} if resource.namespace else {})}
    return {**body, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}

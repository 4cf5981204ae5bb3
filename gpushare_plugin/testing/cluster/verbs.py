"""What is done for a permitted request: reading, creating, changing, deleting, applying, binding, evicting objects."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from gpushare_plugin.testing.cluster.dra.strategy import GROUP, DraObjects
from gpushare_plugin.testing.cluster.lists import Lists
from gpushare_plugin.testing.cluster.people import People
from gpushare_plugin.testing.cluster.store.errors import (
    STATUS,
    ApiError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    TooManyRequestsError,
    UnsupportedError,
)
from gpushare_plugin.testing.cluster.store.objects import Store, refuse_another_uid
from gpushare_plugin.testing.cluster.store.place import Place, collection
from gpushare_plugin.testing.cluster.store.selectors import Selector

Object = dict[str, Any]

LARGEST_REQUEST = 3 * 1024 * 1024
"""Bytes of a request's body (apiserver: MaxRequestBodyBytes)."""


def verb_of(request: web.Request, place: Place) -> str:
    """Return what RBAC calls the verb of a request."""
    if request.method == "DELETE" and not place.name:
        return "deletecollection"
    if request.method != "GET":
        return {"POST": "create", "PUT": "update"}.get(request.method, request.method.lower())
    if place.name:
        return "get"
    return "watch" if request.query.get("watch") in {"true", "1"} else "list"


def status(code: int, message: str, headers: dict[str, str] | None = None, reason: str = "") -> web.Response:
    """Return an answer that is no success."""
    body = {**STATUS, "status": "Failure", "code": code, "message": message, "reason": reason}
    return web.json_response(body, status=code, headers=headers)


class Verbs:
    """Answers all verbs but watches."""

    def __init__(self, store: Store, dra: DraObjects, people: People) -> None:
        """Read and change the objects of `store`; `dra` does so for those of `resource.k8s.io`."""
        self._store = store
        self._dra = dra
        self._people = people
        self._lists = Lists(store)

    async def answer(self, request: web.Request, verb: str, place: Place) -> web.Response:
        """Do what is asked, and answer it."""
        path = place.collection.path
        try:
            if verb == "list":
                return _json(self._lists.answer(place.collection, request.query))
            code, found = await self._carried_out(request, verb, path, place)
            return _json(json.dumps(found).encode(), code)
        except web.HTTPRequestEntityTooLarge:
            return status(413, f"Request entity too large: limit is {LARGEST_REQUEST}")
        except ApiError as error:
            return status(error.code, str(error), reason=error.reason)

    async def _carried_out(self, request: web.Request, verb: str, path: str, place: Place) -> tuple[int, Object]:
        if verb == "get":
            return 200, self._one(path, place)
        body = await _body(request)
        if verb == "deletecollection":
            return 200, self._delete_all(request, place)
        if verb == "delete":
            return 200, self._delete(path, place, body)
        if verb == "patch" and request.content_type == "application/apply-patch+yaml":
            return 200, self._applied(request, path, place, body)
        if verb == "create" and (review := self._people.reviews.get(path)) is not None:
            return 201, review(body)
        written = self._written_dra if place.collection.group == GROUP else self._written
        return written(request, verb, place, body)

    def _one(self, path: str, place: Place) -> Object:
        found = self._store.find(path, place.name)
        if not found:
            raise NotFoundError(f'{place.collection.resource} "{place.name}" not found')
        return found[0]

    def _delete_all(self, request: web.Request, place: Place) -> Object:
        """Delete the objects that a request selects, one after the other."""
        try:
            selector = Selector.of(request.query)
        except ValueError as error:
            raise BadRequestError(str(error)) from error
        for _, stored in self._store.selected(place.collection, selector):
            metadata = stored.found["metadata"]
            within = replace(place.collection, namespace=metadata.get("namespace"))
            self._delete(within.path, replace(place, collection=within, name=metadata["name"]), {})
        return {**STATUS, "status": "Success", "code": 200}

    def _written(self, request: web.Request, verb: str, place: Place, body: Object) -> tuple[int, Object]:
        path = place.collection.path
        match verb, place.subresource:
            case "create", "":
                return 201, self._store.create(path, body)
            case "create", "binding":
                bind(self._store, path, place.name, body)
                return 201, {**STATUS, "status": "Success", "code": 201}
            case "create", "eviction":
                return 201, self._evict(path, place, body)
            case "update", "":
                return 200, self._store.replace(path, body)
            case "patch", "" | "status" if request.content_type == "application/merge-patch+json":
                found, metadata = self._one(path, place), body.get("metadata") or {}
                refuse_another_uid(place.collection, found, metadata.get("uid"))
                _refuse_another(found, {**metadata, "uid": None}, place)
                return 200, self._store.patch(path, place.name, body)
            case "patch", "status" if request.content_type == "application/strategic-merge-patch+json":
                found = self._one(path, place)
                refuse_another_uid(place.collection, found, (body.get("metadata") or {}).get("uid"))
                return 200, self._store.patch(path, place.name, _with_conditions(found, body))
        raise UnsupportedError(f"{verb} of {place} as {request.content_type} is not served here")

    def _written_dra(self, request: web.Request, verb: str, place: Place, body: Object) -> tuple[int, Object]:
        if verb == "create":
            return 201, self._dra.create(place, body)
        if verb == "update" or request.content_type == "application/merge-patch+json":
            return 200, self._dra.change(verb, place, body)
        raise UnsupportedError(f"{verb} of {place} as {request.content_type} is not served here")

    def _applied(self, request: web.Request, path: str, place: Place, body: Object) -> Object:
        manager, force = request.query["fieldManager"], request.query.get("force") == "true"
        try:
            return self._store.apply(path, place.subresource, manager, body, force=force)
        except KeyError as error:
            raise ForbiddenError("apply would create the object, which is not allowed") from error

    def _evict(self, path: str, place: Place, eviction: Object) -> Object:
        """Delete a pod where no budget forbids it (kubernetes: pkg/registry/core/pod/storage/eviction.go)."""
        if (eviction.get("kind"), eviction["metadata"]["name"]) != ("Eviction", place.name):
            raise BadRequestError("name in URL does not match name in Eviction object")
        pod, options = self._one(path, place), eviction.get("deleteOptions") or {}
        _refuse_another(pod, options.get("preconditions") or {}, place)
        labels = pod["metadata"].get("labels") or {}
        budgets = f"/apis/policy/v1/namespaces/{place.collection.namespace}/poddisruptionbudgets"
        for budget in self._store.find(budgets):
            if (budget["spec"]["selector"].get("matchLabels") or {}).items() <= labels.items():
                self._take_disruption(budgets, budget)
        return self._delete(path, place, options)

    def _take_disruption(self, path: str, budget: Object) -> None:
        allowed = budget["status"]["disruptionsAllowed"]
        if allowed < 1:
            raise TooManyRequestsError("Cannot evict pod as it would violate the pod's disruption budget.")
        self._store.patch(path, budget["metadata"]["name"], {"status": {"disruptionsAllowed": allowed - 1}})

    def _delete(self, path: str, place: Place, body: Object) -> Object:
        """Delete an object: a pod that is bound ends first, and is deleted by its kubelet or with no grace."""
        found = self._one(path, place)
        _refuse_another(found, body.get("preconditions") or {}, place)
        bound = place.collection.resource == "pods" and (found.get("spec") or {}).get("nodeName")
        if bound and body.get("gracePeriodSeconds") != 0:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            return self._store.patch(path, place.name, {"metadata": {"deletionTimestamp": now}})
        self._store.delete(path, place.name)
        return {**STATUS, "status": "Success", "code": 200}


def bind(store: Store, path: str, name: str, binding: Object) -> None:
    """Bind a pod as the API server does: its node, and the Binding's annotations and labels, in one change.

    Raises NotFoundError, ConflictError and BadRequestError (kubernetes: pkg/registry/core/pod/storage).
    """
    metadata, node = binding["metadata"], (binding.get("target") or {}).get("name")
    if metadata["name"] != name:
        raise BadRequestError("name in URL does not match name in Binding object")
    if not node:
        raise ApiError("target.name: Required value")

    def assigned(pod: Object) -> Object:
        _refuse_another(pod, metadata, Place(collection(path), name, "binding"))
        if pod["metadata"].get("deletionTimestamp"):
            raise _binding_conflict(name, f"pod {name} is being deleted, cannot be assigned to a host")
        if there := (pod.get("spec") or {}).get("nodeName"):
            raise _binding_conflict(name, f'pod {name} is already assigned to node "{there}"')
        if (pod.get("spec") or {}).get("schedulingGates"):
            raise _binding_conflict(name, f"pod {name} has non-empty .spec.schedulingGates")
        copied = {part: metadata[part] for part in ("annotations", "labels") if metadata.get(part)}
        scheduled = [{"type": "PodScheduled", "status": "True"}]
        return {"metadata": copied, "spec": {"nodeName": node}, "status": {"conditions": scheduled}}

    store.change(path, name, assigned)


def _binding_conflict(name: str, why: str) -> ConflictError:
    return ConflictError(f'Operation cannot be fulfilled on pods/binding "{name}": {why}')


def _refuse_another(found: Object, expected: Object, place: Place) -> None:
    for name, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        there = found["metadata"].get(name)
        if (wanted := expected.get(name)) and wanted != there:
            why = f"Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {there}"
            raise ConflictError(
                f'Operation cannot be fulfilled on {place.collection.resource} "{place.name}": StorageError: invalid '
                f"object, Code: 4, Key: /registry/{place.collection.resource}/{place.name}, ResourceVersion: 0, "
                f"AdditionalErrorMsg: {why}"
            )


def _with_conditions(found: Object, patch: Object) -> Object:
    """Return a strategic merge patch of a status as a JSON merge patch: conditions are merged by their type.

    A new one comes first, as a kube-apiserver 1.36 was seen to do.
    """
    conditions = {each["type"]: each for each in (found.get("status") or {}).get("conditions") or ()}
    for change in patch["status"]["conditions"]:
        if change.get("$patch") == "delete":
            conditions.pop(change["type"], None)
        else:
            if change["type"] not in conditions:
                conditions = {change["type"]: {}, **conditions}
            conditions[change["type"]] |= change
    return {"status": {"conditions": list(conditions.values())}}


async def _body(request: web.Request) -> Object:
    text = await request.text()
    try:
        body = json.loads(text or "{}")
    except ValueError as error:
        raise BadRequestError(f"the object provided is unrecognized: {error}") from error
    if not isinstance(body, dict):
        raise BadRequestError("the object provided is unrecognized")
    return body


def _json(body: bytes, code: int = 200) -> web.Response:
    return web.Response(body=body, status=code, content_type="application/json")

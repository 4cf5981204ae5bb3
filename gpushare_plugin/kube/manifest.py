"""The pod of a manifest that a person pasted: a Pod, or what makes pods by a template."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import yaml

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.text import in_words, visible
from gpushare_plugin.kube.objects import ApiPod, Kept, Metadata, PodSpec

LARGEST = 64 * 1024
"""The most bytes of a manifest."""
_MOST_DEPTH = 50
"""The most levels of a manifest: a Pod has some 12, and libyaml's composer would crash at thousands."""

_LONGEST_NAME = 253

_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "Pod": (),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"), ("spec", "template")),
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""Where each kind has its pod."""


class ManifestError(GpushareError):
    """A manifest has no pod that can be read; the message says what to paste."""


class ManifestPod(NamedTuple):
    """The pod that a manifest describes."""

    label: str
    """Kind and name of the object, for people."""
    pod: ApiPod
    """The pod, without a node and without a UID."""
    node: str
    """The `nodeName` of the manifest; empty without one."""


class _About(Kept, frozen=True):
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class _Described(Kept, frozen=True):
    spec: PodSpec
    metadata: _About = _About()


def manifest_pod(content: bytes) -> ManifestPod:
    """Return the pod that a manifest in YAML or JSON describes; raises ManifestError."""
    document = _document(content)
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _TEMPLATES:
        found = "no kind" if kind is None else f"the kind {visible(str(kind)[:64])}"
        raise ManifestError(
            f"the manifest has {found}, expected one of {', '.join(sorted(_TEMPLATES))}: paste one of these"
        )
    template: Any = document
    for key in _TEMPLATES[kind]:
        template = template.get(key) if isinstance(template, dict) else None
    try:
        # Amounts may be numbers in YAML, and are text in answers of an API server.
        described = msgspec.convert(_with_text(template), _Described, strict=False)
    except msgspec.ValidationError as error:
        raise ManifestError(
            f"the manifest describes no pod: {in_words(error)}: paste one that kubectl accepts"
        ) from error
    about, spec = described.metadata, described.spec
    kept = Metadata(namespace=about.namespace, name=about.name, labels=about.labels, annotations=about.annotations)
    pod = ApiPod(metadata=kept, spec=msgspec.structs.replace(spec, node_name=""))
    label = f"{kind} {_name(document.get('metadata'))}".strip()
    return ManifestPod(label, pod, visible(spec.node_name[:_LONGEST_NAME]))


def _name(metadata: Any) -> str:
    """Return the name in the metadata of an object for people; empty without a name."""
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return visible(name[:_LONGEST_NAME]) if isinstance(name, str) else ""


def _document(content: bytes) -> dict[str, Any]:
    """Return the one document of a manifest; raises ManifestError."""
    if len(content) > LARGEST:
        raise ManifestError(
            f"the manifest has {len(content):,} bytes, {LARGEST:,} at most are read: paste the pod alone"
        )
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _refuse(yaml.parse(content, loader))
        documents = [each for each in yaml.load_all(content, loader) if each is not None]
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ManifestError(f"the manifest is no YAML: {in_words(error)}") from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise ManifestError(f"{len(documents)} documents found, one with a kind expected: paste one object")
    return documents[0]


def _refuse(events: Iterable[Any]) -> None:
    """Raise ManifestError for aliases, which make much of little, and for too many levels."""
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_DEPTH:
            raise ManifestError(f"the manifest has more than {_MOST_DEPTH} levels: paste the pod alone")
        if isinstance(event, yaml.AliasEvent):
            raise ManifestError(f"the manifest has the alias *{visible(event.anchor or '')}: write its value out")


_AMOUNTS = frozenset({"limits", "requests", "overhead"})


def _with_text(value: Any, *, amounts: bool = False) -> Any:
    """Return a value without keys that have no value, with text for numbers among the amounts of resources."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if each is not None}
        return {key: _with_text(each, amounts=amounts or key in _AMOUNTS) for key, each in kept.items()}
    if isinstance(value, list):
        return [_with_text(each, amounts=amounts) for each in value]
    return str(value) if amounts and type(value) in {int, float} else value

"""Recognises files that are no config: manifests, Helm values, and simulated GPUs."""

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.loading.messages import sections_with
from gpushare_plugin.config.schema.names import MEMORY
from gpushare_plugin.config.schema.places import Finding, PlacedValue
from gpushare_plugin.config.schema.spelling import shown

HELM_KEYS = frozenset(
    [
        "admission",
        "affinity",
        "allowDefaultNamespace",
        "annotations",
        "cdi",
        "cleanup",
        "cluster",
        "commonLabels",
        "compatWithCPUManager",
        "config",
        "createRuntimeClass",
        "dashboard",
        "devicePlugin",
        "dnsConfig",
        "dnsPolicy",
        "doctor",
        "dpDisableHealthchecks",
        "dpEnableHealthchecks",
        "enabled",
        "extraArgs",
        "extraEnv",
        "extraObjects",
        "extraVolumeMounts",
        "extraVolumes",
        "fullnameOverride",
        "global",
        "helmTest",
        "hostNetwork",
        "httpPort",
        "image",
        "imagePullSecrets",
        "kubeletRootDir",
        "livenessProbe",
        "logFormat",
        "logLevel",
        "nameOverride",
        "namespaceOverride",
        "networkPolicy",
        "nfd",
        "nodeSelector",
        "operator",
        "podAnnotations",
        "podLabels",
        "podMonitor",
        "podSecurityContext",
        "priorityClassName",
        "prometheusRule",
        "readinessProbe",
        "resourceNames",
        "revisionHistoryLimit",
        "runtimeClassName",
        "scheduler",
        "securityContext",
        "selectorLabelsOverride",
        "service",
        "serviceAccount",
        "serviceMonitor",
        "simulate",
        "tolerations",
        "toolkit",
        "updateStrategy",
        "usage",
        "web",
    ]
)
"""Keys in the Helm values of our chart, NVIDIA's chart and the GPU operator; no config has these keys anywhere."""


VALUES_AND_FLAGS = frozenset(
    [
        "cdiAnnotationPrefix",
        "cdiKind",
        "deviceDiscoveryStrategy",
        "deviceIDStrategy",
        "deviceListStrategy",
        "failOnInitError",
        "gdrcopyEnabled",
        "gdsEnabled",
        "migStrategy",
        "mofedEnabled",
        "nvidiaDevRoot",
        "nvidiaDriverRoot",
        "sharedDevicesAllocationPolicy",
    ]
)
"""Keys at the top level of Helm values that a config has only inside sections."""

_ENABLED = frozenset(["dra", "driverLimits", "gfd", "mps", "partitioning"])
"""Sections of Helm values that have the key `enabled`, and are sections of a config, too."""

_OF_THE_OPERATOR = frozenset(["operator", "toolkit"])


class ConfiglessValues(Struct, frozen=True):
    """Helm values without a config, which are no mistake."""

    note: str
    """Where the configs of the installation are instead, for people."""
    warning: str = ""
    """Why the file may be a config with mistakes all the same; empty where that is out of the question."""
    is_default: bool = True
    """Whether nodes have the config without a file; otherwise their configs are in a ConfigMap."""


def not_a_config(root: PlacedValue) -> Finding | None:
    """Return a finding, with the remedy, for a file that is clearly no config; None for any other file."""
    if kind := _kind(root):
        held = next((each for data in root.at("data") for each in data.section or {}), None)
        remedy = f"give only the text below data.{held}, as a file of its own" if _is_configmap(kind) and held else None
        message = f"found a Kubernetes manifest of kind {shown(kind.text)}, but a config is expected"
        return Finding(kind.key_place, f"{message}; {remedy or 'check the path'}")
    if key := _key_of_values(root):
        named = [each for configs in root.at("config", "map") for each in configs.section or {}]
        remedy = "these have none in config.map"
        if named:
            remedy = f"give only what stands below config.map.{named[0]}, as a file of its own"
        return Finding(key.key_place, f"found Helm values, but a config is expected; {remedy}")
    if gpus := _simulated_gpus(root):
        remedy = "give this file with --simulate"
        return Finding(gpus.key_place, f"found simulated GPUs, but a config is expected; {remedy}")
    return None


def without_a_config(root: PlacedValue) -> Finding | None:
    """Return a finding for a file that is no config and has no config inside; None for a possible config."""
    if kind := _kind(root):
        if _is_configmap(kind):
            return Finding(kind.key_place, "found a ConfigMap without a config: it has no text in data")
        return Finding(kind.key_place, f"found a manifest of kind {shown(kind.text)} without a config")
    if key := _key_of_values(root):
        if _of_the_operator(root):
            where = "devicePlugin.config.data has none"
            return Finding(key.key_place, f"found values of the GPU operator without a config: {where}")
        return Finding(key.key_place, "found Helm values without a config: config.map is no section with names")
    return not_a_config(root)


def values_without_a_config(root: PlacedValue) -> ConfiglessValues | None:
    """Return what counts for Helm values of the chart that have no config; None for any other file."""
    if _kind(root) or _of_the_operator(root):
        return None
    if any(each.value and each.section is None for path in (["config"], ["config", "map"]) for each in root.at(*path)):
        return None
    for name in root.at("config", "name"):
        if name.text:
            return ConfiglessValues(
                f"Helm values without a config: the configs are in the ConfigMap {shown(name.text)} (config.name), "
                "and not checked here",
                is_default=False,
            )
    note = (
        "Helm values without a config: the default of gpushare's chart counts (every GPU by memory, in GiB, as "
        f"{MEMORY})"
    )
    if _key_of_values(root):
        return ConfiglessValues(note)
    keys = root.section or {}
    if keys and keys.keys() <= VALUES_AND_FLAGS:
        first = next(iter(keys))
        homes = " or ".join(sections_with(first))
        warning = f"taken for Helm values, which have {shown(first)} at the top level; if this is a config, write "
        return ConfiglessValues(note, f"{warning}{shown(first)} in {homes}")
    return None


def has_keys_of_values_only(root: PlacedValue) -> bool:
    """Whether the chart knows each key at the top level."""
    # In a Kustomization, which may lack a kind, `resources` is a list.
    known = HELM_KEYS | VALUES_AND_FLAGS | _ENABLED | {"resources"}
    return (root.section or {}).keys() <= known and not root.at("resources", ...)


def _kind(root: PlacedValue) -> PlacedValue | None:
    kinds = root.at("kind") if root.at("apiVersion") else []
    return kinds[0] if kinds and kinds[0].text else None


def _is_configmap(kind: PlacedValue) -> bool:
    return kind.text == "ConfigMap"


def _key_of_values(root: PlacedValue) -> PlacedValue | None:
    """Return the value at the first key that occurs only in Helm values."""
    section, config = root.section or {}, root.child("config")
    if config or section.keys() & {"version", "sharing"}:
        return config
    # A config has some of these sections, but no key `enabled` there.
    return next((node for key, node in section.items() if key in HELM_KEYS or _enables(key, node)), None)


def _enables(key: str, node: PlacedValue) -> bool:
    return key in _ENABLED and node.child("enabled") is not None


def _of_the_operator(root: PlacedValue) -> bool:
    return bool((root.section or {}).keys() & _OF_THE_OPERATOR or root.at("devicePlugin", "config"))


def _simulated_gpus(root: PlacedValue) -> PlacedValue | None:
    # `memory` tells simulated GPUs from entries of `resources.gpus` in the wrong place.
    return root.child("gpus") if root.at("gpus", ..., "memory") and not root.at("sharing") else None

"""Recognises files that are no config: manifests, Helm values, and simulated GPUs."""

from gpushare_plugin.config.loading.messages import sections_with
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
        where = "config.map, or devicePlugin.config.data with the GPU operator, has none"
        return Finding(key.key_place, f"found Helm values without a config: {where}")
    keys = root.section or {}
    if keys and keys.keys() <= VALUES_AND_FLAGS:
        first, node = next(iter(keys.items()))
        homes = " or ".join(sections_with(first))
        message = f"a config has {shown(first)} in {homes} only, and Helm values have it here"
        remedy = "if these are Helm values, they have no config, and nothing is to be checked; otherwise move it there"
        return Finding(node.key_place, f"{message}: {remedy}")
    return not_a_config(root)


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
    # A config has `dra`, `flags.gfd` and `sharing.mps`, but no key `enabled` there.
    return next((node for key, node in section.items() if key in HELM_KEYS or _enables(key, node)), None)


def _enables(key: str, node: PlacedValue) -> bool:
    return key in {"dra", "driverLimits", "gfd", "mps"} and node.child("enabled") is not None


def _simulated_gpus(root: PlacedValue) -> PlacedValue | None:
    # `memory` tells simulated GPUs from entries of `resources.gpus` in the wrong place.
    return root.child("gpus") if root.at("gpus", ..., "memory") and not root.at("sharing") else None

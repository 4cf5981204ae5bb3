"""Values files of nos and of its fork of NVIDIA's chart: taken where they mean the same, else refused in words."""

from typing import Any

import helm_python
import pytest

from tests.chart.reading import pod
from tests.chart.rendering import objects, templates
from tests.chart.test_nvidias_values import DEFAULTS, OURS

LOGGED = {"logLevel": 0, "replicaCount": 1, "nameOverride": "", "fullnameOverride": ""}
RUN = {
    "leaderElection": {"enabled": True},
    "resources": {},
    "podAnnotations": {},
    "tolerations": [],
    "nodeSelector": {},
}

NOS: dict[str, Any] = {
    "nvidiaGpuResourceMemoryGB": 32,
    "allowDefaultNamespace": False,
    "shareTelemetry": True,
    "operator": {"enabled": True, **LOGGED, **RUN, "image": {"tag": ""}, "kubeRbacProxy": {"logLevel": 1}},
    "scheduler": {
        "enabled": True,
        **LOGGED,
        **RUN,
        "config": {},
        "image": {"repository": "ghcr.io/nebuly-ai/nos-scheduler"},
        "affinity": {},
        "securityContext": {"privileged": False},
        "podSecurityContext": {},
    },
    "gpuPartitioner": {"enabled": True, **LOGGED, **RUN, "batchWindowIdleSeconds": 10, "knownMigGeometries": []},
}
"""Names of values of nos (helm-charts/nos/values.yaml of nebuly-ai/nos) with some of their defaults."""

FORK: dict[str, Any] = {
    **{key: each for key, each in DEFAULTS.items() if key not in {"componentSelectorLabels", "devicePlugin", "cdi"}},
    "config": {**DEFAULTS["config"], "name": "nos-device-plugin-configs", "create": True},
    "legacyDaemonsetAPI": None,
    "mps": {"enabled": True, "userID": 1000, "image": {"repository": "ghcr.io/nebuly-ai/nvidia-mps-server"}},
    "nodeSelector": {"nos.nebuly.com/gpu-partitioning": "mps"},
    "affinity": {},
}
"""The default values of nos' fork of NVIDIA's chart (nebuly-ai/k8s-device-plugin), but for those of their subcharts."""


def refused(values: dict[str, Any]) -> str:
    """Return what the chart says about the values."""
    with pytest.raises(helm_python.HelmRenderError) as refusal:
        objects(values)
    return str(refusal.value)


def test_values_of_nos_are_answered_in_words() -> None:
    """Each says what stands for it here; nothing of the schema is quoted."""
    said = refused(NOS)
    for sentence in (
        "nvidiaGpuResourceMemoryGB is 32, but gpushare reads the memory of each GPU from its driver: remove it",
        "operator is set, but gpushare has no elastic quotas: use a ResourceQuota",
        "gpuPartitioner is set, but that is called partitioning here",
        "scheduler.replicaCount is 1, but that is called scheduler.replicas here: set that",
        "scheduler.image is set, but the extender runs in the image of gpushare: remove it",
        "scheduler.leaderElection is set, but extenders always elect one that leads: remove it",
        "scheduler.securityContext is set, but the extender runs as nobody, without any capability: remove it",
    ):
        assert sentence in said
    for without_effect in ("scheduler.logLevel", "scheduler.config", "scheduler.podSecurityContext", "shareTelemetry"):
        assert without_effect not in said


def test_values_of_the_fork_are_answered_in_words() -> None:
    """Whoever ran pods as the user of the MPS server reads that any user will do."""
    said = refused({**FORK, "image": OURS})
    assert "mps.userID is 1000, but here the MPS control daemon runs as root and serves programs of every user" in said
    assert "mps.image is set, but MPS runs in the image of gpushare" in said
    assert "config.create is true, but the chart makes the ConfigMap of config.map" in said


def test_the_rest_of_the_fork_means_the_same() -> None:
    """Without the refused values the file works: MPS runs on the nodes that nos' label names."""
    values = {**FORK, "image": OURS, "config": DEFAULTS["config"], "mps": {"enabled": True}}
    assert pod(values)["nodeSelector"] == FORK["nodeSelector"]
    assert pod(values, "mps")["nodeSelector"] == {**FORK["nodeSelector"], "gpushare/mps": "true"}


def test_parts_of_nos_that_are_off_change_nothing() -> None:
    """The notes name them."""
    values = {"operator": {"enabled": False}, "gpuPartitioner": {"enabled": False}, "shareTelemetry": False}
    assert objects(values) == objects()
    assert (
        "because nothing depends on them: gpuPartitioner, operator, shareTelemetry." in templates(values)["NOTES.txt"]
    )

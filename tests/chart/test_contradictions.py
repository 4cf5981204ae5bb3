"""Values that are valid one by one and contradict each other: rejected with what to change."""

from typing import Any

import helm_python
import pytest

from tests.chart.reading import container, pod
from tests.chart.rendering import objects

TURNS: dict[str, Any] = {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}
MPS: dict[str, Any] = {"sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}


def memory_by(isolation: object) -> dict[str, Any]:
    """Return a config that shares by memory, with an isolation or several."""
    return {"sharing": {"memory": {"resources": [{"name": "a.com/b", "isolation": isolation}]}}}


MEMORY_BY_MPS = memory_by("mps")
GPUS = {"gpus": [{"name": "NVIDIA A10", "memory": "24GiB", "count": 2}]}

CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "gpushare that is off by itself": (
        {"enabled": False},
        "enabled is false, but only a chart of charts reads that, by `condition: gpushare.enabled` in its Chart.yaml: ",
    ),
    "a tag in the name of a repository": (
        {"image": {"repository": "registry.example.com:5000/gpushare:1.0"}},
        (
            "image.repository is registry.example.com:5000/gpushare:1.0, which ends with a tag or a digest: write only "
            "the repository there, and the tag as image.tag"
        ),
    ),
    "a digest in the name of a repository": (
        {"scheduler": {"kubeScheduler": {"image": {"repository": "kube-scheduler@sha256:0"}}}},
        "scheduler.kubeScheduler.image.repository is kube-scheduler@sha256:0, which ends with a tag or a digest: write",
    ),
    "a protocol of MPS without MPS": (
        {"mps": {"protocol": 3}},
        "mps.protocol is 3, but mps.enabled is false, so no MPS control daemon speaks it, and configs keep their",
    ),
    "two sources of configs": (
        {"config": {"map": {"a": TURNS}, "name": "mine"}},
        (
            "config.map and config.name are both set, but nodes read their configs from one ConfigMap only: leave "
            "config.name empty to use config.map, or remove config.map to use your own ConfigMap mine"
        ),
    ),
    "a default that is not there": (
        {"config": {"map": {"b": TURNS, "a": TURNS}, "default": "c"}},
        'config.default is "c", which is not in config.map: set it to one of a, b, or add that config',
    ),
    "a default of nothing": (
        {"config": {"default": "c"}},
        'config.default is "c", but there is no config: add it to config.map, or set config.name to your ConfigMap',
    ),
    "several configs and no choice": (
        {"config": {"map": {"b": TURNS, "a": TURNS}}},
        (
            "config.map has a, b, but no value says which one nodes use: set config.default to one of them, call "
            'one "default", or add empty to config.fallbackStrategies'
        ),
    ),
    "a config that is not YAML": (
        {"config": {"map": {"a": "version: v1\n  sharing: {}"}}},
        "config.map.a is not YAML (",
    ),
    "simulated GPUs under MPS": (
        {"simulate": GPUS, "mps": {"enabled": True}},
        (
            "simulate and mps.enabled are both set, but simulated GPUs have no MPS: remove simulate, or set "
            "mps.enabled to false"
        ),
    ),
    "simulated GPUs that are divided": (
        {"simulate": GPUS, "partitioning": {"mig": {"enabled": True}}},
        "simulate and partitioning.mig.enabled are both set, but simulated GPUs cannot be divided: remove simulate, or",
    ),
    "simulated GPUs with a driver": (
        {"simulate": GPUS, "nvidiaDriverRoot": "/run/nvidia/driver"},
        "simulate and nvidiaDriverRoot are both set, but simulated GPUs have no driver: remove one of them",
    ),
    "an update of two kinds": (
        {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}},
        "updateStrategy.rollingUpdate has maxSurge 1 and maxUnavailable 1, but Kubernetes takes only one of them: set",
    ),
    "an update of no kind": (
        {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}},
        "updateStrategy.rollingUpdate.maxUnavailable is 0 and there is no maxSurge, so no daemon would ever be updated",
    ),
    "two daemons at one port of the node": (
        {"updateStrategy": {"rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}}, "hostNetwork": True},
        "updateStrategy.rollingUpdate.maxSurge is 10%, but with hostNetwork (or devicePlugin.enableHostNetwork)",
    ),
    "MPS that is off": (
        {"config": {"map": {"a": MPS}}},
        (
            "config.map.a shares GPUs by MPS, but mps.enabled is false, so MPS would not run: set mps.enabled to "
            "true, or share in another way"
        ),
    ),
    "memory limited by MPS that is off": (
        {"config": {"map": {"default": TURNS, "a": memory_by("driver+mps")}}},
        "config.map.a shares GPUs by MPS, but mps.enabled is false",
    ),
    "memory limited by MPS on some nodes": (
        {"config": {"map": {"default": TURNS, "a": memory_by(["driver", "mps", "none"])}}},
        "config.map.a shares GPUs by MPS, but mps.enabled is false",
    ),
    "memory limited by MPS alone": (
        {"config": {"map": {"default": TURNS, "a": MEMORY_BY_MPS}}},
        "config.map.a shares GPUs by MPS, but mps.enabled is false",
    ),
    "MPS without its directory": (
        {"mps": {"enabled": True, "root": None}},
        (
            "mps.enabled is true, but mps.root is null, and pods reach MPS through a directory of the host only: "
            "set mps.root, such as to /run/nvidia/mps"
        ),
    ),
    "mounts for others without privilege": (
        {"mps": {"enabled": True, "securityContext": {"privileged": False}}},
        (
            "mps.sharedMemory is 1GiB, but mps.securityContext.privileged is not true, and only privileged "
            "containers can mount anything for other pods: set it to true, or mps.sharedMemory to null"
        ),
    ),
    "two MPS roots": (
        {"config": {"map": {"a": MPS}}, "mps": {"enabled": True, "root": "/data/mps"}},
        (
            "config.map.a has its MPS root at /run/nvidia/mps, but the chart mounts /data/mps: set flags.mpsRoot of "
            "that config and mps.root to the same directory"
        ),
    ),
    "an MPS root that is no path": (
        {"config": {"map": {"a": "{flags: {mpsRoot: 7}, sharing: {mps: {sizes: [{}]}}}"}}, "mps": {"enabled": True}},
        "config.map.a has its MPS root at 7, but the chart mounts /run/nvidia/mps",
    ),
    "privilege without escalation": (
        {"securityContext": {"privileged": True}},
        (
            "securityContext.privileged is true and securityContext.allowPrivilegeEscalation is false, which "
            "Kubernetes rejects together: remove privileged, or set allowPrivilegeEscalation to true"
        ),
    ),
    "driver limits without pods": (
        {"driverLimits": {"enabled": True}},
        (
            "driverLimits.enabled is true, but the daemons do not follow the pods of their nodes, from which they know "
            "the IDs of containers, so no container would be limited: set cluster.enabled and cluster.followPods to "
            "true, or driverLimits.enabled to false"
        ),
    ),
    "driver limits of simulated GPUs": (
        {"simulate": GPUS, "cluster": {"followPods": True}, "driverLimits": {"enabled": True}},
        "simulate and driverLimits.enabled are both set, but no driver limits simulated GPUs: remove simulate, or",
    ),
    "driver limits in the directory of MPS": (
        {
            "cluster": {"followPods": True},
            "mps": {"enabled": True},
            "driverLimits": {"enabled": True, "root": "/var/run/nvidia/mps"},
        },
        "driverLimits.root is /var/run/nvidia/mps and mps.root is /run/nvidia/mps, but each overwrites files of the",
    ),
    "a limit that no hook and no agent sets": (
        {"config": {"map": {"a": memory_by("driver")}}, "deviceListStrategy": "envvar"},
        (
            "config.map.a has the isolation driver, but deviceListStrategy is envvar and "
            "driverLimits.enabled is false, and the hook of NVIDIA's toolkit, which is part of CDI, or the "
            "agent sets limits, so the daemons would refuse the config: set driverLimits.enabled and "
            "cluster.followPods to true, or another isolation, or deviceListStrategy to cdi-cri"
        ),
    ),
    "a burst without the agent": (
        {
            "config": {
                "map": {
                    "a": {
                        "flags": {"plugin": {"deviceListStrategy": ["envvar", "cdi-cri"]}},
                        "sharing": {
                            "memory": {"resources": [{"name": "a.com/b", "isolation": ["driver"], "burst": 1.5}]}
                        },
                    }
                }
            }
        },
        (
            "config.map.a has the isolation driver, but driverLimits.enabled is false, and only its agent sets limits "
            "with a burst, so the daemons would refuse the config: set driverLimits.enabled and cluster.followPods to "
            "true, or another isolation"
        ),
    ),
    "an isolation that no node comes to": (
        {"config": {"map": {"a": memory_by(["none", "driver"])}}},
        (
            "config.map.a has the isolation [none, driver], but every node counts as having none, so what follows is "
            "never chosen: put none at the end"
        ),
    ),
    "driver limits in a directory of the kernel": (
        {"cluster": {"followPods": True}, "driverLimits": {"enabled": True, "root": "/sys/fs/cgroup/x"}},
        "driverLimits.root is /sys/fs/cgroup/x, but no program can make files there, and the daemons and the",
    ),
    "driver limits that are not set by root": (
        {"cluster": {"followPods": True}, "driverLimits": {"enabled": True, "securityContext": {"runAsUser": 65534}}},
        (
            "driverLimits.securityContext has the user 65534, but only root may write the files of cgroups and of "
            "driverLimits.root, so no container would be limited: set driverLimits.securityContext.runAsUser to 0"
        ),
    ),
    "an argument for an agent that the chart does not run": (
        {"extraArgs": ["--driver-limits-agent=true"]},
        (
            "extraArgs has --driver-limits-agent, but the chart runs no agent, and the daemons would wait for it: "
            "remove it there, and set driverLimits.enabled to true"
        ),
    ),
    "an agent that the chart does not run": (
        {"extraEnv": [{"name": "DRIVER_LIMITS_AGENT", "value": "true"}]},
        (
            "extraEnv sets DRIVER_LIMITS_AGENT, but the chart runs no agent, and the daemons would wait for it: remove "
            "it there, and set driverLimits.enabled to true"
        ),
    ),
    "MPS privilege without escalation": (
        {"mps": {"enabled": True, "securityContext": {"allowPrivilegeEscalation": False}}},
        "mps.securityContext.privileged is true and mps.securityContext.allowPrivilegeEscalation is false",
    ),
    "a root that is not root": (
        {"securityContext": {"runAsNonRoot": True}},
        (
            "securityContext.runAsNonRoot is true and securityContext.runAsUser is 0, so no node would start the "
            "pod: remove runAsNonRoot"
        ),
    ),
    "a pod that is not root": (
        {"podSecurityContext": {"runAsNonRoot": True, "runAsUser": 1000}},
        "podSecurityContext.runAsNonRoot is true and securityContext.runAsUser is 0",
    ),
    "a pod of MPS that is not root": (
        {
            "podSecurityContext": {"runAsNonRoot": True},
            "securityContext": {"runAsNonRoot": False},
            "mps": {"enabled": True},
        },
        "podSecurityContext.runAsNonRoot is true and mps.securityContext.runAsUser is 0",
    ),
    "evictions without an API server": (
        {"cluster": {"enabled": False}, "usage": {"evict": True, "hostPID": True}},
        "usage.evict is true, but cluster.enabled is false",
    ),
    "evictions of nobody": (
        {"usage": {"evict": True}},
        (
            "usage.evict is true, but usage.hostPID is false, so it would not be known which pod uses too much: set "
            "both to true, or both to false; with cluster.followPods, a config with isolation driver is enough, too"
        ),
    ),
    "evictions by the driver's count of nobody": (
        {
            "config": {"map": {"default": memory_by("driver")}},
            "deviceListStrategy": "cdi-cri",
            "usage": {"evict": True},
        },
        (
            "usage.evict is true, but usage.hostPID and cluster.followPods are false, so it would not be known which "
            "pod uses too much, although the driver counts what each container uses: set cluster.enabled and "
        ),
    ),
    "evictions without the right": (
        {"config": {"map": {"default": {"version": "v1", "overuse": {"action": "evict"}}}}},
        (
            "config.map.default has overuse.action evict, but usage.evict is false, so the daemons have no right to "
            "evict pods: set it to true, or overuse.action to report"
        ),
    ),
    "metrics of containers without a port": (
        {"usage": {"containerMetrics": True}, "httpPort": None},
        "usage.containerMetrics is true, but httpPort is null, so there are no metrics",
    ),
    "pods that are not seen": (
        {"cluster": {"enabled": False, "followPods": True}},
        (
            "cluster.followPods is true, but cluster.enabled is false, so the daemons would not see pods: set both to "
            "true, or both to false"
        ),
    ),
    "pages without GPUs": (
        {"cluster": {"enabled": False}, "web": {"enabled": True, "insecureHttp": True}},
        (
            "web.enabled is true, but cluster.enabled is false, so the daemons would not publish the GPUs that the "
            "pages show: set both to true, or both to false"
        ),
    ),
    "tokens that others can read": (
        {"web": {"enabled": True}},
        (
            "web.enabled is true, but web.tls.secretName is not set, so tokens of viewers would come over plain HTTP: "
            "set web.tls.secretName, or web.insecureHttp where only a proxy with HTTPS reaches the pages"
        ),
    ),
    "a proxy without HTTPS": (
        {"web": {"enabled": True, "insecureHttp": True, "proxy": {"secretName": "front"}}},
        (
            "web.proxy.secretName is set, but web.tls.secretName is not, and a proxy proves by HTTPS who it is: set "
            "web.tls.secretName, or remove web.proxy.secretName"
        ),
    ),
    "names of a proxy without an authority": (
        {"web": {"enabled": True, "tls": {"secretName": "pages"}, "proxy": {"names": ["front"]}}},
        (
            "web.proxy.names is set, but web.proxy.secretName is not, so no proxy would be believed: set "
            "web.proxy.secretName, or remove web.proxy.names"
        ),
    ),
    "pages that read no metrics": (
        {"httpPort": None, "web": {"enabled": True, "insecureHttp": True, "daemonMetrics": True}},
        (
            "web.daemonMetrics is true, but httpPort is null, so the daemons have no metrics that the pages could "
            "read: set httpPort, or web.daemonMetrics to false"
        ),
    ),
    "one port for pages and probes": (
        {"web": {"enabled": True, "insecureHttp": True, "port": 8081}},
        "web.port and web.probePort are both 8081: set two ports",
    ),
    "slices that no daemon sees": (
        {"cluster": {"enabled": False}, "partitioning": {"enabled": True}},
        (
            "partitioning.enabled is true, but cluster.enabled is false, so the daemons would not see which slices are "
            "wanted: set both to true, or both to false"
        ),
    ),
    "MIG instances that nothing wants": (
        {"partitioning": {"mig": {"enabled": True}}},
        (
            "partitioning.mig.enabled is true, but partitioning.enabled is false, so no MIG instances would be wanted: "
            "set both to true, or both to false"
        ),
    ),
    "one directory for MPS and MIG": (
        {
            "mps": {"enabled": True},
            "partitioning": {"enabled": True, "mig": {"enabled": True, "root": "/run/nvidia/mps/"}},
        },
        (
            "partitioning.mig.root is /run/nvidia/mps/ and mps.root is /run/nvidia/mps, but each overwrites files of "
            "the other in the same directory, and pods write below mps.root: set two directories beside each other"
        ),
    ),
    "MIG below the directory of MPS": (
        {
            "mps": {"enabled": True},
            "partitioning": {"enabled": True, "mig": {"enabled": True, "root": "/run/nvidia/mps/shm"}},
        },
        "partitioning.mig.root is /run/nvidia/mps/shm and mps.root is /run/nvidia/mps, but",
    ),
    "one directory for MPS and MIG, by a link": (
        {
            "mps": {"enabled": True},
            "partitioning": {"enabled": True, "mig": {"enabled": True, "root": "/var/run/nvidia/mps"}},
        },
        "partitioning.mig.root is /var/run/nvidia/mps and mps.root is /run/nvidia/mps, but each overwrites files of",
    ),
    "MPS below the directory of MIG": (
        {
            "mps": {"enabled": True, "root": "/run/gpushare/mig/mps"},
            "partitioning": {"enabled": True, "mig": {"enabled": True}},
        },
        "partitioning.mig.root is /run/gpushare/mig and mps.root is /run/gpushare/mig/mps, but",
    ),
    "Events that nobody can send": (
        {"cluster": {"enabled": False, "events": True}},
        (
            "cluster.events is true, but cluster.enabled is false, so the daemons could not send Events: set both to "
            "true, or both to false"
        ),
    ),
    "cordons of the extender by name, and all": (
        {"scheduler": {"cordonConfigMaps": True, "cordonNodes": ["aliyun-1"]}},
        (
            "scheduler.cordonConfigMaps lets the extender read every ConfigMap of kube-system, and "
            "scheduler.cordonNodes only those of the nodes it names: set cordonConfigMaps to false, or remove "
            "cordonNodes"
        ),
    ),
    "cordons that no daemon sees": (
        {"cluster": {"enabled": False, "cordonNodes": ["gpu-1"]}},
        (
            "cluster.cordonNodes names nodes, but cluster.enabled is false, so daemons would not see cordoned "
            "GPUs: set cluster.enabled to true, or remove cluster.cordonNodes"
        ),
    ),
    "feature discovery that labels nothing": (
        {"gfd": {"enabled": True}, "cluster": {"nodeLabels": False}},
        (
            "gfd.enabled is true, but the daemons would publish no node labels, because cluster.enabled or "
            "cluster.nodeLabels is false: set both to true, or gfd.enabled to false where NVIDIA's GPU feature "
            "discovery is installed in another way"
        ),
    ),
    "feature discovery without rights": (
        {"gfd": {"enabled": True}, "cluster": {"enabled": False}},
        "gfd.enabled is true, but the daemons would publish no node labels",
    ),
    "every ConfigMap and some": (
        {"cluster": {"cordonConfigMaps": True, "cordonNodes": ["gpu-1"]}},
        (
            "cluster.cordonConfigMaps lets the daemons read every ConfigMap of kube-system, and cluster.cordonNodes "
            "only those of the nodes it names: set cordonConfigMaps to false, or remove cordonNodes"
        ),
    ),
    "ConfigMaps without rights": (
        {"cluster": {"enabled": False, "cordonConfigMaps": True}},
        "cluster.cordonConfigMaps is true, but cluster.enabled is false",
    ),
    "a policy that does not apply": (
        {"hostNetwork": True, "networkPolicy": {"enabled": True}},
        (
            "networkPolicy.enabled and hostNetwork (or devicePlugin.enableHostNetwork) are both true, but network "
            "policies do not apply to pods in the network of their node: set one of them to false"
        ),
    ),
    "a policy that does not apply, by NVIDIA's name": (
        {"devicePlugin": {"enableHostNetwork": True}, "networkPolicy": {"enabled": True}},
        "networkPolicy.enabled and hostNetwork (or devicePlugin.enableHostNetwork) are both true",
    ),
    "a RuntimeClass without a name": (
        {"createRuntimeClass": True},
        (
            "createRuntimeClass is true, but runtimeClassName is empty, so there is no name for it: set "
            "runtimeClassName, such as to nvidia, or createRuntimeClass to false"
        ),
    ),
    "a variable of the chart": (
        {"extraEnv": [{"name": "LOG_LEVEL", "value": "debug"}]},
        (
            "extraEnv sets LOG_LEVEL, which the chart sets itself: remove it there, and use the value that has this "
            "effect"
        ),
    ),
    "a variable twice": (
        {"extraEnv": [{"name": "A", "value": "1"}, {"name": "B"}, {"name": "A", "value": "2"}]},
        "extraEnv sets A twice: remove one of them",
    ),
    "a config file beside a ConfigMap": (
        {"config": {"map": {"a": TURNS}}, "extraEnv": [{"name": "CONFIG_FILE", "value": "/more/config.yaml"}]},
        (
            "extraEnv sets CONFIG_FILE, but nodes read their configs from a ConfigMap, because config.map or "
            "config.name is set, and the daemon takes one of both only: remove CONFIG_FILE, or config.map and "
            "config.name"
        ),
    ),
    "a config file as argument beside a ConfigMap": (
        {"config": {"map": {"a": TURNS}}, "extraArgs": ["--log-level=debug", "--config-file", "/more/config.yaml"]},
        (
            "extraArgs has --config-file, but nodes read their configs from a ConfigMap, because config.map or "
            "config.name is set, and an argument would override that: remove --config-file and use the values below "
            "config, or remove config.map and config.name"
        ),
    ),
    "another directory of configs as argument": (
        {"config": {"name": "mine"}, "extraArgs": ["--config-directory=/more"]},
        "extraArgs has --config-directory, but nodes read their configs from a ConfigMap",
    ),
    "another default config as argument": (
        {"config": {"map": {"a": TURNS}}, "extraArgs": ["--default-config=a"]},
        "extraArgs has --default-config, but nodes read their configs from a ConfigMap",
    ),
    "a config file beside a ConfigMap of the user": (
        {"config": {"name": "mine"}, "extraEnv": [{"name": "CONFIG_FILE", "value": "/more/config.yaml"}]},
        "extraEnv sets CONFIG_FILE, but nodes read their configs from a ConfigMap",
    ),
    "two volumes in one place": (
        {
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}, {"name": "more", "mountPath": "/more/"}],
        },
        "extraVolumeMounts mounts two volumes at /more/: choose another mountPath for one of them",
    ),
    "a channel that no container gets": (
        {"extraEnv": [{"name": "IMEX_CHANNEL_IDS", "value": "0"}]},
        (
            "extraEnv sets IMEX_CHANNEL_IDS, but gpushare gives containers no IMEX channels: remove it, and use "
            "NVIDIA's DRA driver for GPUs of several nodes on one fabric"
        ),
    ),
    "channels that are required": (
        {"config": {"map": {"a": "imex: {required: true}"}}},
        (
            "config.map.a requests IMEX channels, but gpushare gives containers none: remove imex.channelIDs and "
            "imex.required, and use NVIDIA's DRA driver for GPUs of several nodes on one fabric"
        ),
    ),
    "channels": ({"config": {"map": {"a": "imex: {channelIDs: [0]}"}}}, "config.map.a requests IMEX channels"),
    "an extender without daemons that publish": (
        {"scheduler": {"enabled": True}, "cluster": {"enabled": False}},
        (
            "scheduler.enabled is true, but cluster.enabled is false, so the daemons would not publish which GPUs "
            "their nodes have, nor follow what the extender promises: set cluster.enabled to true"
        ),
    ),
    "a scheduler without an extender": (
        {"scheduler": {"kubeScheduler": {"enabled": True}}},
        (
            "scheduler.kubeScheduler.enabled is true, but scheduler.enabled is false, so there would be no extender "
            "for it: set scheduler.enabled to true"
        ),
    ),
    "pods for a scheduler that does not run": (
        {"scheduler": {"enabled": True}, "admission": {"schedulerName": True}},
        (
            "admission.schedulerName is true, but scheduler.kubeScheduler.enabled is false, so pods would wait for a "
            "scheduler that does not run: set both, or neither"
        ),
    ),
    "a runtime class that has no name": (
        {"admission": {"runtimeClassName": True}},
        (
            "admission.runtimeClassName is true, but runtimeClassName is empty, so there is no RuntimeClass to set: "
            "set runtimeClassName, such as to nvidia, or admission.runtimeClassName to false"
        ),
    ),
    "variables that are stripped from pods that nobody judges": (
        {"admission": {"gpuVariables": "strip"}},
        (
            "admission.gpuVariables is strip, but admission.pods is false, so nothing would keep a pod from setting "
            "other variables of gpushare: set admission.pods to true, or admission.gpuVariables to reject"
        ),
    ),
    "a second scheduler of the first one's name": (
        {"scheduler": {"enabled": True, "kubeScheduler": {"enabled": True, "schedulerName": "default-scheduler"}}},
        (
            "scheduler.kubeScheduler.schedulerName is default-scheduler, but that is the scheduler of the cluster: "
            "choose another name"
        ),
    ),
    "certificates of clients without HTTPS": (
        {"scheduler": {"enabled": True, "tls": {"clientSecretName": "a"}}},
        "scheduler.tls.clientSecretName is set, but scheduler.tls.secretName is not, and without HTTPS there are no ",
    ),
    "one port for two": (
        {"scheduler": {"enabled": True, "probePort": 32766}},
        "scheduler.port and scheduler.probePort are both 32766: choose two different ports",
    ),
    "who may reach an extender that is not there": (
        {"networkPolicy": {"enabled": True, "schedulers": [{"podSelector": {}}]}},
        (
            "networkPolicy.schedulers lists who may reach the extender, but networkPolicy.enabled is false, so all "
            "pods may reach it, or scheduler.enabled is false, so there is none: set both, or remove "
            "networkPolicy.schedulers"
        ),
    ),
    "resources that the chart cannot know": (
        {"config": {"name": "mine"}, "scheduler": {"enabled": True}},
        "the chart does not know which resources the configs in ConfigMap mine offer: list them in resourceNames",
    ),
    "resources that the chart cannot know, for a RuntimeClass": (
        {"config": {"name": "mine"}, "runtimeClassName": "nvidia", "admission": {"runtimeClassName": True}},
        "the chart does not know which resources the configs in ConfigMap mine offer: list them in resourceNames",
    ),
    "a volume of the chart": (
        {"extraVolumes": [{"name": "configs", "emptyDir": {}}]},
        "extraVolumes has a volume configs, which is a name of the chart's own: choose another one",
    ),
    "a mount of nothing": (
        {"extraVolumeMounts": [{"name": "more", "mountPath": "/more"}]},
        "extraVolumeMounts mounts more, but there is no such volume: add it to extraVolumes",
    ),
    "limits without rights": (
        {"cluster": {"enabled": False, "admissionPolicy": True}},
        "cluster.admissionPolicy is true, but cluster.enabled is false",
    ),
    "rights for everybody": (
        {"serviceAccount": {"create": False}},
        (
            "serviceAccount.create is false and serviceAccount.name is empty, so every pod of the namespace would "
            "get the daemon's rights on nodes: set serviceAccount.name to an account of yours, or cluster.enabled "
            "to false"
        ),
    ),
    "a Service without a port": (
        {"service": {"enabled": True}, "httpPort": None},
        (
            "service.enabled is true, but httpPort is null, so there are no metrics: set httpPort, such as to "
            "8080, or service.enabled to false"
        ),
    ),
    "a PodMonitor without a port": (
        {"podMonitor": {"enabled": True}, "httpPort": None},
        "podMonitor.enabled is true, but httpPort is null",
    ),
    "a ServiceMonitor without a port": (
        {"serviceMonitor": {"enabled": True}, "httpPort": None},
        "serviceMonitor.enabled is true, but httpPort is null",
    ),
    "prices without rules": (
        {"prometheusRule": {"prices": {"A100": 3}}, "usage": {"containerMetrics": True}},
        "prometheusRule.prices is set, but prometheusRule.enabled is false, so that nothing is recorded",
    ),
    "prices of nobody knows what": (
        {"prometheusRule": {"enabled": True, "prices": {"A100": 3}}},
        "prometheusRule.prices is set, but usage.containerMetrics is false, so that nobody knows what namespaces hold",
    ),
    "dcgm-exporter's names without rules": (
        {"prometheusRule": {"dcgmNames": True}},
        "prometheusRule.dcgmNames is set, but prometheusRule.enabled is false, so that nothing is recorded",
    ),
    "HAMi's metrics without a port": (
        {"usage": {"hamiMetrics": True}, "httpPort": None},
        "usage.hamiMetrics is true, but httpPort is null",
    ),
    "Aliyun's metrics without a port": (
        {"usage": {"aliyunMetrics": True}, "httpPort": None},
        "usage.aliyunMetrics is true, but httpPort is null",
    ),
    "a Service with dots in its name": (
        {"service": {"enabled": True}, "fullnameOverride": "gpu.shares"},
        (
            "service.enabled is true, but the Service would be called gpu.shares, and the name of a Service starts "
            "with a letter and has no dots: set fullnameOverride to such a name"
        ),
    ),
    "a Service that begins with a digit": (
        {"service": {"enabled": True}, "fullnameOverride": "8-gpus"},
        "the Service would be called 8-gpus",
    ),
    "peers without a policy": (
        {"networkPolicy": {"from": [{"podSelector": {}}]}},
        "networkPolicy.from lists who may reach httpPort, but networkPolicy.enabled is false",
    ),
    "peers without a port": (
        {"networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]}, "httpPort": None},
        "or httpPort is null, so there is no port: set both, or remove networkPolicy.from",
    ),
}


@pytest.mark.parametrize(("values", "sentence"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradiction_is_rejected(values: dict[str, Any], sentence: str) -> None:
    """Nothing is installed, and the sentence names both values and what to change, not in the name of a test."""
    with pytest.raises(helm_python.HelmRenderError) as rejection:
        objects(values)
    assert sentence in str(rejection.value)
    assert "templates/tests/" not in str(rejection.value)


MOUNTED: list[dict[str, Any]] = [
    {"simulate": GPUS, "config": {"map": {"a": TURNS}}},
    {
        "mps": {"enabled": True},
        "partitioning": {"enabled": True, "mig": {"enabled": True}},
        "nvidiaDriverRoot": "/run/nvidia/driver",
        "deviceListStrategy": "volume-mounts",
    },
]
"""Values that make the daemon's pod mount all that it can."""


@pytest.mark.parametrize("values", MOUNTED, ids=["simulated", "real"])
def test_a_mount_over_a_mount_of_the_chart_is_rejected(values: dict[str, Any]) -> None:
    """Kubernetes would reject the DaemonSet without naming the value; the chart names it before."""
    volume = {"extraVolumes": [{"name": "more", "emptyDir": {}}]}
    for mount in container(values)["volumeMounts"]:
        path = mount["mountPath"]
        with pytest.raises(helm_python.HelmRenderError) as rejection:
            objects({**values, **volume, "extraVolumeMounts": [{"name": "more", "mountPath": path}]})
        assert f"extraVolumeMounts mounts more at {path}, which is a directory of the chart's own" in str(
            rejection.value
        )
    for each in pod(values)["volumes"]:
        with pytest.raises(helm_python.HelmRenderError) as rejection:
            objects({**values, "extraVolumes": [{"name": each["name"], "emptyDir": {}}]})
        assert f"extraVolumes has a volume {each['name']}, which is a name of the chart's own" in str(rejection.value)


def test_values_of_nvidias_chart_are_rejected_together() -> None:
    """Also beside a config with mistakes, though Helm renders the pod of `helm test`, which reads it, first."""
    values = {"nfd": {"enabled": True}, "mps": {"enableHostNetwork": True}, "config": {"map": {"a": "sharing: 7"}}}
    with pytest.raises(helm_python.HelmRenderError) as rejection:
        objects(values)
    assert "nfd.enabled is true, but " in str(rejection.value)
    assert "mps.enableHostNetwork is true, but " in str(rejection.value)


CONSISTENT: list[dict[str, Any]] = [
    {"config": {"map": {"a": TURNS}}},
    {"config": {"map": {"b": TURNS, "a": TURNS}, "fallbackStrategies": ["empty"]}},
    {"config": {"name": "mine"}},
    {"config": {"name": "mine", "default": "a"}},
    {"config": {"map": {"a": MPS}}, "mps": {"enabled": True}},
    {
        "config": {"map": {"a": {**MPS, "flags": {"mpsRoot": "/data/mps/"}}}},
        "mps": {"enabled": True, "root": "/data/mps"},
    },
    {"securityContext": {"privileged": True, "allowPrivilegeEscalation": True}},
    {"podSecurityContext": {"runAsNonRoot": True}, "securityContext": {"runAsNonRoot": False}},
    {"cluster": {"enabled": False}},
    {"serviceAccount": {"create": False, "name": "gpus"}},
    {"serviceAccount": {"create": False}, "cluster": {"enabled": False}},
    {"simulate": GPUS, "nvidiaDriverRoot": "/"},
    {"gfd": {"enabled": False}, "cluster": {"nodeLabels": False}},
    {"cluster": {"cordonConfigMaps": True}},
    {"partitioning": {"enabled": True, "mig": {"enabled": True, "root": "/run/nvidia/mps"}}},
    {
        "mps": {"enabled": True},
        "partitioning": {"enabled": True, "mig": {"enabled": True, "root": "/run/nvidia/mps-mig"}},
    },
    {"hostNetwork": True},
    {"image": {"repository": "registry.example.com:5000/gpushare"}},
    {"image": {"tag": None}},
    {"extraEnv": [{"name": "IMEX_REQUIRED", "value": "false"}, {"name": "IMEX_CHANNEL_IDS"}]},
    {"config": {"map": {"a": {"imex": {"channelIDs": [], "required": False}}}}},
    {"extraEnv": [{"name": "CONFIG_FILE", "value": "/more/config.yaml"}]},
    {"extraEnv": [{"name": "DRIVER_LIMITS_AGENT", "value": "false"}]},
    {"extraArgs": ["--driver-limits-agent=false"]},
    {"config": {"map": {"a": memory_by("driver")}}, "deviceListStrategy": ["envvar", "cdi-annotations"]},
    {"config": {"map": {"a": memory_by("driver")}}, "simulate": GPUS},
    {
        "config": {"map": {"a": memory_by("driver")}},
        "cluster": {"followPods": True},
        "driverLimits": {"enabled": True, "root": "/system/limits"},
    },
]


@pytest.mark.parametrize("values", CONSISTENT)
def test_values_without_contradiction_are_accepted(values: dict[str, Any]) -> None:
    """What the message of a rejection asks for is accepted."""
    assert objects(values)


KINDS = {
    "sharing: by turns": "config.map.a.sharing is text, but must be a mapping: correct the file; gpushare check-",
    "flags: [migStrategy]": "config.map.a.flags is a list, but must be a mapping",
    "flags: {plugin: true}": "config.map.a.flags.plugin is true or false, but must be a mapping",
    "resources: {gpus: {name: a}}": "config.map.a.resources.gpus is a mapping, but must be a list",
    "resources: {gpus: [7]}": "config.map.a.resources.gpus[0] is a number, but must be a mapping",
    "sharing: {memory: 4GiB}": "config.map.a.sharing.memory is text, but must be a mapping",
    "sharing: {timeSlicing: {resources: {name: gpu}}}": "resources is a mapping, but must be a list",
    "sharing: {timeSlicing: {resources: [null]}}": "resources[0] is nothing, but must be a mapping",
    "sharing: {mps: {sizes: [{slices: 10gb}]}}": "sharing.mps.sizes[0].slices is text, but must be a list",
    "health: none": "config.map.a.health is text, but must be a mapping",
    "- version: v1": "config.map.a is a list, but a config file has the keys version, flags, resources and ",
    "version v1": "config.map.a is no mapping, but a config file has the keys version, flags, resources and ",
}
"""Text of a config file -> the message about it."""


@pytest.mark.parametrize(("text", "sentence"), KINDS.items())
def test_value_of_another_kind_is_rejected(text: str, sentence: str) -> None:
    """Text instead of a mapping is reported with its place, because the schema does not look into texts."""
    with pytest.raises(helm_python.HelmRenderError) as rejection:
        objects({"config": {"map": {"a": text}}})
    assert sentence in str(rejection.value)


MISTAKES = [
    "sharing: {timeSlicing: {resources: [{}]}}",
    "sharing: {timeSlicing: {resources: [{name: 7}], renameByDefault: maybe}}",
    "sharing: {memory: {resources: [{name: 7, isolation: []}]}}",
    "flags: {migStrategy: {}, plugin: {deviceListStrategy: 7}}",
    "resources: {gpus: [{}]}",
    "sharing: null",
]


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_without_contradiction_are_left_to_the_daemon(text: str) -> None:
    """Other mistakes do not stop the chart: the daemon reports them with line and column."""
    assert objects({"config": {"map": {"a": text}}})


def test_mistakes_under_mps_are_left_to_the_daemon() -> None:
    """The same where MPS is on."""
    text = "sharing: {mps: {sizes: [{slices: [{size: 7}]}]}}"
    assert objects({"config": {"map": {"a": text}}, "mps": {"enabled": True}})

{{/*
Values of other charts, so that their values files can be used: those of NVIDIA's device plugin (deployments/helm/nvidia-device-plugin
of NVIDIA/k8s-device-plugin), of nos' fork of that chart (nebuly-ai/k8s-device-plugin) and of nos (helm-charts/nos of nebuly-ai/nos).
Each is used, passed over where it changes nothing here, or refused.
*/}}

{{/* A value by its place, such as gfd.enabled, as JSON: (list $ $place); null where it is not given. */}}
{{- define "gpushare.at" -}}
{{- $found := (first .).Values }}
{{- range last . | splitList "." }}
{{- $found = index ($found | default dict) . }}
{{- end }}
{{- toJson (dict "value" $found) }}
{{- end }}

{{/* Sentences about values of other charts that would have to change something here, and do not, as a YAML list. */}}
{{- define "gpushare.foreignRefusals" -}}
{{- $refused := list }}
{{- /* Place, the value that changes nothing here, what to do about any other. */}}
{{- range list
  (list "devicePlugin.enabled" true "gpushare is the device plugin: set it to true, or do not install this chart")
  (list "nfd.enabled" false "this chart does not install node-feature-discovery: install it by its own chart, or label the nodes with GPUs gpushare=true, and set nfd.enabled to false")
  (list "mps.enableHostPID" true "MPS identifies its clients, which are in other pods, by the host's process IDs: set it to true")
  (list "mps.enableHostNetwork" false "MPS needs no network: set it to false")
  (list "cdi.featureFlags" "" "gpushare has no flags for the CDI specification that it writes: set them where NVIDIA's toolkit writes one, and remove them here")
  (list "namespace" (include "gpushare.namespace" .) "the objects go to the namespace of the release: install with --namespace, or set namespaceOverride, and remove namespace")
  (list "legacyDaemonsetAPI" false "no Kubernetes that gpushare supports has that API: set it to false")
  (list "mps.userID" "" "here the MPS control daemon runs as root and serves programs of every user: remove it, and let pods run as the user they want")
  (list "mps.image" "" "MPS runs in the image of gpushare, with the driver's own programs: remove it")
  (list "config.create" false "the chart makes the ConfigMap of config.map, and slices that the partitioner wants need none: remove config.create, and config.name where that ConfigMap was for nos")
  (list "nvidiaGpuResourceMemoryGB" "" "gpushare reads the memory of each GPU from its driver: remove it")
  (list "operator" "" "gpushare has no elastic quotas: use a ResourceQuota with the names of the resources, or a queue such as Kueue, and remove operator")
  (list "gpuPartitioner" "" "that is called partitioning here, and decides without batches and lists of geometries: set partitioning.enabled with mps.enabled or partitioning.mig.enabled, partitioning.replicas for replicaCount, and resources, podAnnotations, tolerations, affinity and nodeSelector below partitioning, and remove gpuPartitioner")
  (list "scheduler.replicaCount" "" "that is called scheduler.replicas here: set that, and remove scheduler.replicaCount")
  (list "scheduler.config" "" "the chart makes the configuration of kube-scheduler: remove it, and use the values below scheduler")
  (list "scheduler.image" "" "the extender runs in the image of gpushare: remove it; scheduler.kubeScheduler.image is that of kube-scheduler")
  (list "scheduler.logLevel" 0 "the programs have one logLevel, at the top: set that to debug, and remove scheduler.logLevel")
  (list "scheduler.leaderElection" "" "extenders always elect one that leads: remove it")
  (list "scheduler.nameOverride" "" "all objects are named by nameOverride at the top: set that, and remove scheduler.nameOverride")
  (list "scheduler.fullnameOverride" "" "all objects are named by fullnameOverride at the top: set that, and remove scheduler.fullnameOverride")
  (list "scheduler.securityContext" "" "the extender runs as nobody, without any capability: remove it")
  (list "scheduler.podSecurityContext" "" "the extender runs as nobody, without any capability: remove it")
}}
{{- $found := (include "gpushare.at" (list $ (first .)) | fromJson).value }}
{{- if kindIs "map" $found }}
{{- if and $found (ne (toString $found.enabled) "false") }}
{{- $refused = append $refused (printf "%s is set, but %s" (first .) (last .)) }}
{{- end }}
{{- else if not (or (kindIs "invalid" $found) (has (toString $found) (list "" (index . 1 | toString)))) }}
{{- $refused = append $refused (printf "%s is %v, but %s" (first .) $found (last .)) }}
{{- end }}
{{- end }}
{{- $containers := (include "gpushare.at" (list . "devicePlugin.containers") | fromJson).value | default dict }}
{{- range $place, $other := dict
  "devicePlugin.containers" (omit $containers "main")
  "devicePlugin.containers.main" (omit ($containers.main | default dict) "env")
}}
{{- range $key, $value := $other }}
{{- if $value }}
{{- $refused = append $refused (printf "%s.%s is set, but the daemon's pod has one container, which is configured by devicePlugin.containers.main.env, extraEnv, resources and securityContext: use these, and remove it" $place $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $refused }}
{{- end }}

{{/* The places of values of other charts on which nothing depends here, where they are given, as a YAML list. */}}
{{- define "gpushare.foreignIgnored" -}}
{{- $ignored := list }}
{{- range list
  "allowDefaultNamespace"
  "componentSelectorLabels"
  "gfd.enableHostNetwork"
  "gfd.nameOverride"
  "gfd.namespaceOverride"
  "gfd.noTimestamp"
  "gfd.securityContext"
  "gfd.sleepInterval"
  "gpuPartitioner"
  "nfd"
  "noTimestamp"
  "operator"
  "shareTelemetry"
  "sleepInterval"
}}
{{- $found := (include "gpushare.at" (list $ .) | fromJson).value }}
{{- if not (or (kindIs "invalid" $found) (has (toString $found) (list "" "map[]"))) }}
{{- $ignored = append $ignored . }}
{{- end }}
{{- end }}
{{- toYaml $ignored }}
{{- end }}

{{/* Variables of the daemon by the name that NVIDIA's chart has for them, as a YAML list. */}}
{{- define "gpushare.nvidiasEnv" -}}
{{- (include "gpushare.at" (list . "devicePlugin.containers.main.env") | fromJson).value | default list | toYaml }}
{{- end }}

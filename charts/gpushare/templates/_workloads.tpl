{{/*
The programs that the chart runs, called by the component in their labels: node-daemon, mps, mig, driver-limits, extender,
kube-scheduler, partitioner, web, cleanup, doctor and test. Values about a program have the same names for all of them. Most templates take (list $ $component).
*/}}

{{/* Where the values of a program are, such as partitioning.mig. Those of the daemon are at the top. */}}
{{- define "gpushare.place" -}}
{{- get (dict
  "node-daemon" ""
  "mps" "mps"
  "mig" "partitioning.mig"
  "driver-limits" "driverLimits"
  "extender" "scheduler"
  "kube-scheduler" "scheduler.kubeScheduler"
  "partitioner" "partitioning"
  "web" "web"
  "cleanup" "cleanup"
  "doctor" "doctor"
  "test" "helmTest"
) (last .) }}
{{- end }}

{{/* The values of a program as JSON: none where the values of an older chart, which had no such program, are used again. */}}
{{- define "gpushare.section" -}}
{{- $section := (first .).Values }}
{{- range include "gpushare.place" . | splitList "." | compact }}
{{- $section = get $section . | default dict }}
{{- end }}
{{- toJson $section }}
{{- end }}

{{/* How a value of a program is called: (list $ $component $value). */}}
{{- define "gpushare.valueName" -}}
{{- printf "%s.%s" (include "gpushare.place" (list (index . 0) (index . 1))) (index . 2) | trimPrefix "." }}
{{- end }}

{{/* Labels or annotations of the chart, and those in a value of a program, which must not change them: (list $ $component $value $own). */}}
{{- define "gpushare.beside" -}}
{{- $value := index . 2 }}
{{- $own := index . 3 }}
{{- $given := get (include "gpushare.section" (list (index . 0) (index . 1)) | fromJson) $value | default dict }}
{{- $name := include "gpushare.valueName" (list (index . 0) (index . 1) $value) }}
{{- range $key, $text := $given }}
{{- if and (hasKey $own $key) (ne $text (get $own $key)) }}
{{- fail (printf "%s sets %s to %s, but the chart itself sets it to %s: remove it there" $name $key $text (get $own $key)) }}
{{- end }}
{{- end }}
{{- merge (dict) $own $given | toYaml }}
{{- end }}

{{/* The annotations of the object that makes the pods of a program: (list $ $component $own). */}}
{{- define "gpushare.workloadAnnotations" -}}
{{- with include "gpushare.beside" (list (index . 0) (index . 1) "annotations" (index . 2)) | fromYaml }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Labels and annotations of the pods of a program: (list $ $component $own), with annotations of the chart. Annotations at the top of
the values are for the programs on nodes with GPUs, labels there for all.
*/}}
{{- define "gpushare.podMetadata" -}}
{{- $ := first . }}
{{- $component := index . 1 }}
{{- $labels := merge (include "gpushare.selectorLabels" (list $ $component) | fromYaml) (include "gpushare.releaseLabels" $ | fromYaml) }}
{{- if ne $component "node-daemon" }}
{{- $labels = include "gpushare.beside" (list $ $component "podLabels" $labels) | fromYaml }}
{{- end }}
labels:
  {{- merge $labels ($.Values.podLabels | default dict) ($.Values.commonLabels | default dict) | toYaml | nindent 2 }}
{{- $annotations := include "gpushare.beside" (list $ $component "podAnnotations" (last .)) | fromYaml }}
{{- if has $component (list "mps" "mig" "driver-limits") }}
{{- $annotations = merge $annotations ($.Values.podAnnotations | default dict) }}
{{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
The variables of a program's container: those of the chart, which a template gpushare.environment.COMPONENT has, and more from values.
Of the chart's, only what NVIDIA's runtime gives the container can be set otherwise.
*/}}
{{- define "gpushare.env" -}}
{{- $own := include (printf "gpushare.environment.%s" (last .)) (first .) | trim }}
{{- $section := include "gpushare.section" . | fromJson }}
{{- $given := dict (include "gpushare.valueName" (append . "extraEnv")) ($section.extraEnv | default list) }}
{{- if eq (last .) "node-daemon" }}
{{- $_ := set $given "devicePlugin.containers.main.env" (include "gpushare.nvidiasEnv" (first .) | fromYamlArray) }}
{{- end }}
{{- $taken := dict }}
{{- range fromYamlArray $own }}
{{- $_ := set $taken .name "chart" }}
{{- end }}
{{- $extra := list }}
{{- range $value, $entries := $given }}
{{- range $entries }}
{{- $before := get $taken .name }}
{{- if and (eq $before "chart") (not (has .name (list "NVIDIA_VISIBLE_DEVICES" "NVIDIA_DRIVER_CAPABILITIES"))) }}
{{- fail (printf "%s sets %s, which the chart sets itself: remove it there, and use the value that has this effect" $value .name) }}
{{- else if eq $before "value" }}
{{- fail (printf "%s sets %s twice: remove one of them" $value .name) }}
{{- else if eq $before "chart" }}
{{- $own = include "gpushare.without" (list $own .name) | trim }}
{{- end }}
{{- $_ := set $taken .name "value" }}
{{- $extra = append $extra . }}
{{- end }}
{{- end }}
{{- $own }}
{{- with $extra }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Variables as YAML, but for one: (list $variables $name). */}}
{{- define "gpushare.without" -}}
{{- $kept := list }}
{{- range first . | fromYamlArray }}
{{- if ne .name (last $) }}
{{- $kept = append $kept . }}
{{- end }}
{{- end }}
{{- with $kept }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* Fields of the pods of a program that come from values, without those that are empty. */}}
{{- define "gpushare.podFields" -}}
{{- $ := first . }}
{{- $section := include "gpushare.section" . | fromJson }}
{{- $placement := "gpushare.clusterFields" }}
{{- if has (last .) (list "node-daemon" "mps" "mig" "driver-limits" "test") }}
{{- $placement = "gpushare.nodeFields" }}
{{- else if eq (last .) "cleanup" }}
{{- $placement = "gpushare.cleanupFields" }}
{{- else if eq (last .) "doctor" }}
{{- $placement = "gpushare.doctorFields" }}
{{- end }}
{{- $fields := include $placement . | fromYaml }}
{{- $_ := set $fields "imagePullSecrets" (include "gpushare.pullSecrets" $ | fromYamlArray) }}
{{- $_ := set $fields "dnsPolicy" ($section.dnsPolicy | default "") }}
{{- if and (eq (last .) "node-daemon") (include "gpushare.hostNetwork" $) (not $fields.dnsPolicy) }}
{{- $_ := set $fields "dnsPolicy" "ClusterFirstWithHostNet" }}
{{- end }}
{{- $_ := set $fields "dnsConfig" $section.dnsConfig }}
{{- if and (eq $fields.dnsPolicy "None") (not (($section.dnsConfig | default dict).nameservers)) }}
{{- $place := include "gpushare.valueName" (append . "dns") }}
{{- fail (printf "%sPolicy is None, but %sConfig has no nameservers, and the pods would find none: set %sConfig.nameservers, or another policy" $place $place $place) }}
{{- end }}
{{- range $name, $value := $fields }}
{{- if not $value }}{{ $_ := unset $fields $name }}{{ end }}
{{- end }}
{{- with $fields }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* The imagePullSecrets of the chart, and those that are for all charts of a chart of charts, as a YAML list. */}}
{{- define "gpushare.pullSecrets" -}}
{{- $secrets := .Values.imagePullSecrets | default list }}
{{- range (.Values.global | default dict).imagePullSecrets }}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) }}
{{- end }}
{{- uniq $secrets | toYaml }}
{{- end }}

{{/* Where the programs on nodes with GPUs go: the daemon, what is beside it there, and the pod of `helm test`. */}}
{{- define "gpushare.nodeFields" -}}
{{- $ := first . }}
{{- $program := dict }}
{{- if has (last .) (list "mps" "mig" "driver-limits") }}
{{- $program = include "gpushare.section" . | fromJson }}
{{- end }}
{{- $selector := $program.nodeSelector | default dict }}
{{- if and (eq (last .) "mps") (kindIs "invalid" $program.nodeSelector) $.Values.cluster.enabled }}
{{- /* By default MPS goes only where the daemon's label says that GPUs are shared by MPS. */}}
{{- $selector = dict "gpushare/mps" "true" }}
{{- end }}
{{- $affinity := kindIs "invalid" $program.affinity | ternary $.Values.affinity $program.affinity }}
{{- if and (kindIs "invalid" $affinity) (not $.Values.simulate) }}
{{- $affinity = include "gpushare.nodesWithGpus" $ | fromYaml }}
{{- end }}
{{- $fields := dict
  "runtimeClassName" $.Values.runtimeClassName
  "nodeSelector" (merge (dict) $selector ($.Values.nodeSelector | default dict))
  "affinity" $affinity
  "tolerations" $.Values.tolerations
}}
{{- if eq (last .) "test" }}
{{- /* All pods with a share have the same scheduler: another one would take units that are promised. */}}
{{- with $.Values.scheduler }}
{{- if and .enabled .kubeScheduler.enabled }}
{{- $_ := set $fields "schedulerName" .kubeScheduler.schedulerName }}
{{- end }}
{{- end }}
{{- else }}
{{- $fields = merge $fields (dict "priorityClassName" $.Values.priorityClassName "securityContext" $.Values.podSecurityContext) }}
{{- end }}
{{- toYaml $fields }}
{{- end }}

{{/* The affinity for nodes of which a label says that they have GPUs. */}}
{{- define "gpushare.nodesWithGpus" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range list
        "gpushare"
        "nvidia.com/gpu.present"
        "feature.node.kubernetes.io/pci-10de.present"
        "feature.node.kubernetes.io/pci-0300_10de.present"
        "feature.node.kubernetes.io/pci-0302_10de.present"
      }}
      - matchExpressions: [{key: {{ . }}, operator: In, values: ["true"]}]
      {{- end }}
      {{- range list "ack.node.gpu.schedule" "nos.nebuly.com/gpu-partitioning" }}
      - matchExpressions: [{key: {{ . }}, operator: Exists}]
      {{- end }}
{{- end }}

{{/* Where the programs go that work for the whole cluster. kube-scheduler goes where the extender goes. */}}
{{- define "gpushare.clusterFields" -}}
{{- $ := first . }}
{{- $section := get (dict "partitioner" $.Values.partitioning "web" $.Values.web) (last .) | default $.Values.scheduler }}
{{- $affinity := $section.affinity }}
{{- $selector := dict "matchLabels" (include "gpushare.selectorLabels" . | fromYaml) }}
{{- if kindIs "invalid" $affinity }}
{{- $apart := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" $selector }}
{{- $preferred := list (dict "weight" 100 "podAffinityTerm" $apart) }}
{{- $affinity = dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $preferred) }}
{{- end }}
{{- $spread := list }}
{{- range $section.topologySpreadConstraints }}
{{- if hasKey . "labelSelector" }}
{{- $spread = append $spread . }}
{{- else }}
{{- /* Without a selector a constraint would count no pod. */}}
{{- $spread = append $spread (set (deepCopy .) "labelSelector" $selector) }}
{{- end }}
{{- end }}
{{- dict
  "nodeSelector" (merge (dict "kubernetes.io/os" "linux") ($section.nodeSelector | default dict))
  "affinity" $affinity
  "tolerations" $section.tolerations
  "topologySpreadConstraints" $spread
  "priorityClassName" $section.priorityClassName
  | toYaml }}
{{- end }}

{{/* The clean-up needs no GPU, so it can run on any node, except those whose taints say that they do not work. */}}
{{- define "gpushare.cleanupFields" -}}
{{- $tolerations := (first .).Values.tolerations | default list }}
{{- range list "control-plane" "master" }}
{{- $tolerations = append $tolerations (dict "key" (printf "node-role.kubernetes.io/%s" .) "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
{{- dict "nodeSelector" (dict "kubernetes.io/os" "linux") "tolerations" $tolerations | toYaml }}
{{- end }}

{{/*
The doctor goes to its node whatever the taints are, and without a runtime class: a node whose runtime class does not work is one
that it is for.
*/}}
{{- define "gpushare.doctorFields" -}}
{{- dict "tolerations" (list (dict "operator" "Exists")) "securityContext" (first .).Values.podSecurityContext | toYaml }}
{{- end }}

{{/* The variables of the daemon by which the doctor knows what the config needs of a node. */}}
{{- define "gpushare.environment.doctor" -}}
{{- $kept := list }}
{{- range include "gpushare.environment.node-daemon" . | fromYamlArray }}
{{- if has .name (list "CONFIG_DIRECTORY" "DEFAULT_CONFIG" "FALLBACK_STRATEGIES" "MPS_ROOT" "MPS_PROTOCOL" "DEVICE_LIST_STRATEGY" "DEVICE_ID_STRATEGY" "NVIDIA_DRIVER_ROOT" "CDI_KIND") }}
{{- $kept = append $kept . }}
{{- end }}
{{- end }}
{{- with $kept }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* The resources of a container of a hook: (list $ $component $defaults). A ResourceQuota of the namespace may demand each of these. */}}
{{- define "gpushare.hookResources" -}}
{{- $section := include "gpushare.section" (list (index . 0) (index . 1)) | fromJson }}
{{- merge (dict) ($section.resources | default dict) (last . | fromYaml) | toYaml }}
{{- end }}

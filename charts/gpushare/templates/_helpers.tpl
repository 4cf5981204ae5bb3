{{- define "gpushare.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* A release called like the chart gives its name alone, any other <release>-<chart>. */}}
{{- define "gpushare.fullname" -}}
{{- $name := include "gpushare.name" . }}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) }}
{{- .Values.fullnameOverride | default $full | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "gpushare.labels" -}}
app.kubernetes.io/name: {{ include "gpushare.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* A selector cannot change later, so the component is named while there is only one. */}}
{{- define "gpushare.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gpushare.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: node-daemon
{{- end }}

{{- define "gpushare.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "gpushare.fullname" .) "default") }}
{{- end }}

{{- define "gpushare.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end }}

{{/* The files of the ConfigMap; empty where none is needed. */}}
{{- define "gpushare.files" -}}
{{- $files := dict }}
{{- range $file, $content := dict "config.yaml" .Values.config "gpus.yaml" .Values.simulate }}
{{- if $content }}
{{- $_ := set $files $file (kindIs "string" $content | ternary $content (toYaml $content)) }}
{{- end }}
{{- end }}
{{- if $files }}
{{- toYaml $files }}
{{- end }}
{{- end }}

{{/*
Every setting is an environment variable, not an argument: a command that is run in the pod by hand, such as
`gpushare list`, then sees what the daemon sees.
*/}}
{{- define "gpushare.environment" -}}
# A kubelet that shows this pod knows its pods, and is believed that nobody holds a unit.
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- if .Values.cluster.enabled }}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: NODE_LABELS
  value: {{ .Values.cluster.nodeLabels | quote }}
{{- end }}
- name: LOG_FORMAT
  value: {{ .Values.logFormat }}
- name: LOG_LEVEL
  value: {{ .Values.logLevel }}
{{- if .Values.config }}
- name: CONFIG_FILE
  value: /etc/gpushare/config.yaml
{{- end }}
{{- if .Values.simulate }}
- name: SIMULATE
  value: /etc/gpushare/gpus.yaml
{{- end }}
{{- $settings := dict
  "migStrategy" "MIG_STRATEGY"
  "failOnInitError" "FAIL_ON_INIT_ERROR"
  "deviceListStrategy" "DEVICE_LIST_STRATEGY"
  "deviceIDStrategy" "DEVICE_ID_STRATEGY"
  "nvidiaDriverRoot" "NVIDIA_DRIVER_ROOT"
  "nvidiaDevRoot" "NVIDIA_DEV_ROOT"
  "passDeviceSpecs" "PASS_DEVICE_SPECS"
  "sharedDevicesAllocationPolicy" "SHARED_DEVICES_ALLOCATION_POLICY"
  "dpDisableHealthchecks" "DP_DISABLE_HEALTHCHECKS"
  "dpEnableHealthchecks" "DP_ENABLE_HEALTHCHECKS"
  "cdiAnnotationPrefix" "CDI_ANNOTATION_PREFIX"
  "cdiKind" "CDI_KIND"
  "deviceDiscoveryStrategy" "DEVICE_DISCOVERY_STRATEGY"
  "gdrcopyEnabled" "GDRCOPY_ENABLED"
  "gdsEnabled" "GDS_ENABLED"
  "mofedEnabled" "MOFED_ENABLED"
}}
{{- range $key, $variable := $settings }}
{{- $value := index $.Values $key }}
{{- if not (kindIs "invalid" $value) }}
- name: {{ $variable }}
  value: {{ kindIs "slice" $value | ternary (join "," $value) $value | quote }}
{{- end }}
{{- end }}
{{- if .Values.nvidiaDriverRoot }}
# A config file cannot know where this chart mounts the driver.
- name: CONTAINER_DRIVER_ROOT
  value: /driver-root
{{- end }}
# For NVIDIA's runtime: show this container every GPU and the management library, nothing more.
- name: NVIDIA_VISIBLE_DEVICES
  value: all
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
{{- end }}

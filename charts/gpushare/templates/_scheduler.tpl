{{/* The first part of the names of the extender's objects. */}}
{{- define "gpushare.extenderName" -}}
{{- include "gpushare.part" (list . "-extender") }}
{{- end }}

{{- define "gpushare.kubeSchedulerName" -}}
{{- include "gpushare.part" (list . "-kube-scheduler") }}
{{- end }}

{{- define "gpushare.extenderMetricsName" -}}
{{- include "gpushare.part" (list . "-extender-metrics") }}
{{- end }}

{{- define "gpushare.extenderCordonsName" -}}
{{- include "gpushare.part" (list . "-extender-cordons") }}
{{- end }}

{{/* The nodes whose ConfigMaps, which cordon GPUs, the extender may read: separated by commas, * for all, or nothing. */}}
{{- define "gpushare.extenderCordons" -}}
{{- .Values.scheduler.cordonConfigMaps | ternary "*" (join "," .Values.scheduler.cordonNodes) }}
{{- end }}

{{/* The name of the Lease of extenders, which `gpushare extender` has fixed. */}}
{{- define "gpushare.extenderLease" -}}
gpushare-extender
{{- end }}

{{/* The first part of the names of the partitioner's objects. */}}
{{- define "gpushare.partitionerName" -}}
{{- include "gpushare.part" (list . "-partitioner") }}
{{- end }}

{{/* The names of the Deployment with the pages, and of the ClusterRole of those who may see the pages. */}}
{{- define "gpushare.webName" -}}
{{- include "gpushare.part" (list . "-web") }}
{{- end }}
{{- define "gpushare.webViewerName" -}}
{{- include "gpushare.part" (list . "-web-viewer") }}
{{- end }}

{{/* The name of the Lease of partitioners, which `gpushare partition` has fixed. */}}
{{- define "gpushare.partitionerLease" -}}
gpushare-partitioner
{{- end }}

{{/* The name by which pods reach the extender, and which its certificate has. */}}
{{- define "gpushare.extenderHost" -}}
{{ include "gpushare.extenderName" . }}.{{ include "gpushare.namespace" . }}.svc
{{- end }}

{{/*
The address of the extender for kube-scheduler. One of the control plane is usually in the network of its host, where names
of Services are unknown.
*/}}
{{- define "gpushare.extenderAddress" -}}
{{- $service := .Values.scheduler.service }}
{{- if .Values.scheduler.kubeScheduler.enabled }}
{{- printf "%s:%v" (include "gpushare.extenderHost" .) .Values.scheduler.port }}
{{- else if $service.clusterIP }}
{{- printf "%s:%v" (contains ":" $service.clusterIP | ternary (printf "[%s]" $service.clusterIP) $service.clusterIP) .Values.scheduler.port }}
{{- else if $service.nodePort }}
{{- printf "127.0.0.1:%v" $service.nodePort }}
{{- else }}
{{- printf "%s:%v" (include "gpushare.extenderHost" .) .Values.scheduler.port }}
{{- end }}
{{- end }}

{{/*
HTTPS, as JSON: `own` is the first part of the names of the Secrets that the extender makes, `server` the Secret that it is given
instead, `authority` the one where kube-scheduler finds ca.crt, `client` that of its own certificate; all empty for plain HTTP.
*/}}
{{- define "gpushare.tls" -}}
{{- $given := .Values.scheduler.tls }}
{{- $map := dict }}
{{- if kindIs "map" $given }}{{ $map = $given }}{{ end }}
{{- $own := "" }}
{{- $client := "" }}
{{- if and .Values.scheduler.kubeScheduler.enabled (not $map.secretName) (or (kindIs "map" $given) (kindIs "invalid" $given)) }}
{{- $own = include "gpushare.part" (list . "-extender-tls") }}
{{- $client = printf "%s-client" $own }}
{{- end }}
{{- dict "own" $own "server" ($map.secretName | default "") "authority" ($map.secretName | default $client) "client" ($map.clientSecretName | default $client) | toJson }}
{{- end }}

{{/* How kube-scheduler reaches the extender by HTTPS: (list $ $directory), where its files are; nothing for plain HTTP. */}}
{{- define "gpushare.extenderHttps" -}}
{{- $directory := last . }}
{{- with first . }}
{{- $tls := include "gpushare.tls" . | fromJson }}
{{- if $tls.authority }}
enableHTTPS: true
tlsConfig:
  serverName: {{ include "gpushare.extenderHost" . | quote }}
  caFile: {{ $directory }}/ca.crt
  {{- if $tls.client }}
  certFile: {{ $directory }}/tls.crt
  keyFile: {{ $directory }}/tls.key
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* What kube-scheduler has to know of the extender: (list $ $directory), where its files for TLS are. */}}
{{- define "gpushare.extenders" -}}
{{- $directory := last . }}
{{- with first . }}
{{- $tls := include "gpushare.tls" . | fromJson }}
{{- $url := printf "%s://%s" (empty $tls.authority | ternary "http" "https") (include "gpushare.extenderAddress" .) }}
{{- $https := include "gpushare.extenderHttps" (list . $directory) | trim }}
# Of more than 100 nodes kube-scheduler would ask the extender about a sample only, and a pod could wait although a GPU has
# room for it. docs/scheduling.md says what this costs in a large cluster.
percentageOfNodesToScore: 100
extenders:
  - urlPrefix: {{ $url | quote }}
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt
    bindVerb: bind
    weight: {{ .Values.scheduler.weight }}
    httpTimeout: {{ .Values.scheduler.httpTimeout | quote }}
    nodeCacheCapable: true
    {{- with $https }}
    {{- . | nindent 4 }}
    {{- end }}
    # A pod without an extender would be placed by the sum of the node's GPUs, and fail where no single one has room.
    ignorable: false
    managedResources:
      {{- range include "gpushare.managedResources" . | fromYamlArray }}
      - name: {{ . | quote }}
        ignoredByScheduler: false
      {{- end }}
  {{- if eq .Values.scheduler.placement "packing" }}
  # Pods without GPUs: which node should have them, so that the CPU beside free GPUs stays. Without an answer they are placed as ever.
  - urlPrefix: {{ $url | quote }}
    prioritizeVerb: prioritize-others
    weight: {{ .Values.scheduler.weight }}
    httpTimeout: 1s
    nodeCacheCapable: true
    {{- with $https }}
    {{- . | nindent 4 }}
    {{- end }}
    ignorable: true
  {{- end }}
{{- end }}
{{- end }}

{{/* The securityContext of containers that need nothing of their node. */}}
{{- define "gpushare.unprivileged" -}}
runAsUser: 65534
runAsNonRoot: true
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* A PodDisruptionBudget for one component: (list $ $name $component $replicas). */}}
{{- define "gpushare.disruptionBudget" -}}
{{- $ := first . }}
{{- if gt (index . 3 | int) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ index . 1 | quote }}
  namespace: {{ include "gpushare.namespace" $ | quote }}
  labels:
    {{- include "gpushare.labels" $ | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "gpushare.selectorLabels" (list $ (index . 2)) | nindent 6 }}
{{- end }}
{{- end }}

{{/* A ServiceAccount: (list $ $name). */}}
{{- define "gpushare.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ last . | quote }}
  namespace: {{ include "gpushare.namespace" (first .) | quote }}
  labels:
    {{- include "gpushare.labels" (first .) | nindent 4 }}
{{- end }}

{{/*
A RoleBinding or ClusterRoleBinding to a service account of ours:
(list $ $kind $name $namespace $roleKind $role $account); a ClusterRoleBinding has no namespace.
*/}}
{{- define "gpushare.binding" -}}
{{- $ := index . 0 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ index . 1 }}
metadata:
  name: {{ index . 2 | quote }}
  {{- with index . 3 }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "gpushare.labels" $ | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ index . 4 }}
  name: {{ index . 5 | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ index . 6 | quote }}
    namespace: {{ include "gpushare.namespace" $ | quote }}
{{- end }}

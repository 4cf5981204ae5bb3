{{/* The monitors of all programs of the chart that have metrics: (list $ "PodMonitor" $values). */}}
{{- define "gpushare.monitors" -}}
{{- $chart := index . 0 }}
{{- $kind := index . 1 }}
{{- $given := index . 2 }}
{{- $programs := list (list "node-daemon" (include "gpushare.fullname" $chart) "http") }}
{{- if $chart.Values.scheduler.enabled }}
{{- $programs = append $programs (list "extender" (include "gpushare.extenderName" $chart) "probes") }}
{{- end }}
{{- if $chart.Values.partitioning.enabled }}
{{- $programs = append $programs (list "partitioner" (include "gpushare.partitionerName" $chart) "probes") }}
{{- end }}
{{- if ($chart.Values.web | default dict).enabled }}
{{- $programs = append $programs (list "web" (include "gpushare.webName" $chart) "probes") }}
{{- end }}
{{- range $programs }}
---
apiVersion: monitoring.coreos.com/v1
kind: {{ $kind }}
metadata:
  name: {{ index . 1 | quote }}
  namespace: {{ $given.namespace | default (include "gpushare.namespace" $chart) | quote }}
  labels:
    {{- merge (dict) ($given.labels | default dict) (include "gpushare.labels" $chart | fromYaml) | toYaml | nindent 4 }}
spec:
  {{- if $given.namespace }}
  namespaceSelector:
    matchNames: [{{ include "gpushare.namespace" $chart | quote }}]
  {{- end }}
  selector:
    matchLabels:
      {{- if eq $kind "PodMonitor" }}
      {{- include "gpushare.selectorLabels" (list $chart (first .)) | nindent 6 }}
  podMetricsEndpoints:
      {{- else }}
      {{- dict "app.kubernetes.io/name" (include "gpushare.name" $chart) "app.kubernetes.io/instance" $chart.Release.Name "app.kubernetes.io/component" (first .) | toYaml | nindent 6 }}
  endpoints:
      {{- end }}
    {{- include "gpushare.endpoint" (list (last .) $given) | nindent 4 }}
{{- end }}
{{- end }}

{{/*
What a monitor scrapes at a port: (list $port $values). The labels namespace, pod and container of a metric are kept, unless the values
say otherwise: they name the pod that uses a GPU, not the one that is scraped.
*/}}
{{- define "gpushare.endpoint" -}}
{{- $given := last . -}}
- port: {{ first . }}
  path: /metrics
  {{- with $given.interval }}
  interval: {{ . | quote }}
  {{- end }}
  {{- with $given.scrapeTimeout }}
  scrapeTimeout: {{ . | quote }}
  {{- end }}
  honorLabels: {{ ne (toString $given.honorLabels) "false" }}
  relabelings:
    - sourceLabels: [__meta_kubernetes_pod_node_name]
      targetLabel: node
    {{- with $given.relabelings }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $given.metricRelabelings }}
  metricRelabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/*
The number that ends a condition after > or <, which prometheusRule.customRules can replace, as a pattern. Where a condition has none,
it asks whether something is true.
*/}}
{{- define "gpushare.threshold" -}}
([<>]) [0-9][0-9 *.]*$
{{- end }}

{{/* An alert of files/alerts.yaml as the values below prometheusRule change it: (list $rule $values). */}}
{{- define "gpushare.alert" -}}
{{- $rule := first . }}
{{- $given := last . }}
{{- $custom := get ($given.customRules | default dict) $rule.alert | default dict }}
{{- if not (kindIs "invalid" $custom.threshold) }}
{{- $_ := set $rule "expr" (regexReplaceAll (include "gpushare.threshold" .) $rule.expr (printf "${1} %v" $custom.threshold)) }}
{{- end }}
{{- with $custom.for }}
{{- $_ := set $rule "for" . }}
{{- end }}
{{- $severity := dict }}
{{- with $custom.severity }}
{{- $severity = dict "severity" . }}
{{- end }}
{{- $_ := set $rule "labels" (merge $severity ($given.additionalRuleLabels | default dict) $rule.labels) }}
{{- $page := dict }}
{{- with $given.runbookUrl }}
{{- $page = dict "runbook_url" (printf "%s#%s" . (lower $rule.alert)) }}
{{- end }}
{{- $_ := set $rule "annotations" (merge $page ($given.additionalRuleAnnotations | default dict) $rule.annotations) }}
{{- toYaml $rule }}
{{- end }}

{{/*
The dashboard of files/dashboard.json, with links to the pages whose addresses the values know: of each alert that the description of a
panel names, to its section, and of nodes, to gpushare web.
*/}}
{{- define "gpushare.dashboard" -}}
{{- $text := .Files.Get "files/dashboard.json" }}
{{- $alerts := .Values.prometheusRule.runbookUrl }}
{{- $web := .Values.dashboard.webUrl | default "" | trimSuffix "/" }}
{{- if not (or $alerts $web) }}
{{- $text }}
{{- else }}
{{- $dashboard := fromJson $text }}
{{- $links := list }}
{{- range $title, $url := dict "Alerts" $alerts "Pages of gpushare" $web }}
{{- if $url }}
{{- $links = append $links (dict "type" "link" "title" $title "url" $url "targetBlank" true) }}
{{- end }}
{{- end }}
{{- $_ := set $dashboard "links" $links }}
{{- range $dashboard.panels }}
{{- if $alerts }}
{{- include "gpushare.linkAlerts" (list $ . $alerts) }}
{{- end }}
{{- if and $web (eq .type "table") }}
{{- $node := dict "title" "Pages of gpushare" "url" (printf "%s/nodes/${__value.text}" $web) "targetBlank" true }}
{{- $shown := dict "matcher" (dict "id" "byName" "options" "Node") "properties" (list (dict "id" "links" "value" (list $node))) }}
{{- $_ := set .fieldConfig "overrides" (append .fieldConfig.overrides $shown) }}
{{- end }}
{{- end }}
{{- toPrettyJson $dashboard }}
{{- end }}
{{- end }}

{{/* Gives a panel a link to each alert that its description names: (list $ $panel $address). */}}
{{- define "gpushare.linkAlerts" -}}
{{- $panel := index . 1 }}
{{- $address := last . }}
{{- $links := list }}
{{- range ((first .).Files.Get "files/alerts.yaml" | fromYaml).groups }}
{{- range .rules }}
{{- if regexMatch (printf "\\b%s\\b" .alert) (default "" $panel.description) }}
{{- $links = append $links (dict "title" .alert "url" (printf "%s#%s" $address (lower .alert)) "targetBlank" true) }}
{{- end }}
{{- end }}
{{- end }}
{{- if $links }}
{{- $_ := set $panel "links" $links }}
{{- end }}
{{- end }}

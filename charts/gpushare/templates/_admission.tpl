{{/* The start of an admission policy: (list $ $name $kind $version). */}}
{{- define "gpushare.policyHead" -}}
apiVersion: admissionregistration.k8s.io/{{ index . 3 }}
kind: {{ index . 2 }}
metadata:
  name: {{ index . 1 | quote }}
  labels:
    {{- include "gpushare.labels" (first .) | nindent 4 }}
{{- end }}

{{/* The version of the API that has MutatingAdmissionPolicies, or nothing where none has them. */}}
{{- define "gpushare.mutatingVersion" -}}
{{- if semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version }}v1
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" }}v1beta1
{{- end }}
{{- end }}

{{/* What puts a ValidatingAdmissionPolicy in force: (list $ $name). */}}
{{- define "gpushare.denyBinding" -}}
{{ include "gpushare.policyHead" (list (first .) (last .) "ValidatingAdmissionPolicyBinding" "v1") }}
spec:
  policyName: {{ last . | quote }}
  validationActions: [Deny]
{{- end }}

{{/*
CEL: whether a limit of a container of the pod has a `name` in which an expression holds. Limits are enough: for such resources they
are the requests.
*/}}
{{- define "gpushare.asksFor" -}}
(object.spec.containers + object.spec.?initContainers.orValue([])).exists(container,
container.?resources.?limits.orValue({}).exists(name, {{ . }}))
{{- end }}

{{/* CEL: whether a resource `name` is one of ours by the values. */}}
{{- define "gpushare.isManaged" -}}
name in [{{ range $number, $name := include "gpushare.managedResources" . | fromYamlArray }}{{ if $number }}, {{ end }}'{{ $name }}'{{ end }}]
{{- end }}

{{/* CEL: whether a resource `name` is one of ours, or a slice or MIG instance, whose names the values do not have. */}}
{{- define "gpushare.isOurs" -}}
{{- include "gpushare.isManaged" . }}
{{- if .Values.partitioning.enabled }} || name.matches('^nvidia[.]com/gpu-[1-9][0-9]*gb$'){{ end }}
{{- if include "gpushare.mig" . }} || name.startsWith('nvidia.com/mig-'){{ end }}
{{- end }}

{{/* CEL: whether a container of the pod requests one of our resources, or a slice or MIG instance. */}}
{{- define "gpushare.asksForShare" -}}
{{- include "gpushare.asksFor" (include "gpushare.isOurs" .) }}
{{- end }}

{{/*
A policy that changes pods with a share, and what puts it in force: a dict of the `chart`, the `name` of the policy, its `conditions`,
each a list of a name and an expression that has to hold, and its `patch`, an expression that comes to a list of JSON patches. With
`debugging` it also holds for containers for debugging, which are added to pods. A pod for which an expression fails stays as it is.
*/}}
{{- define "gpushare.changePods" -}}
{{- $version := include "gpushare.mutatingVersion" .chart | trim }}
{{- include "gpushare.policyHead" (list .chart .name "MutatingAdmissionPolicy" $version) }}
spec:
  failurePolicy: Ignore
  reinvocationPolicy: IfNeeded
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [pods]
        operations: [CREATE]
      {{- if .debugging }}
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [pods/ephemeralcontainers]
        operations: [UPDATE]
      {{- end }}
  matchConditions:
    {{- range .conditions }}
    - name: {{ first . }}
      expression: >-
        {{- last . | nindent 8 }}
    {{- end }}
  mutations:
    # A patch, because an apply configuration is rejected for pods that have a variable twice.
    - patchType: JSONPatch
      jsonPatch:
        expression: >-
          {{- .patch | nindent 10 }}
---
{{ include "gpushare.policyHead" (list .chart .name "MutatingAdmissionPolicyBinding" $version) }}
spec:
  policyName: {{ .name | quote }}
{{- end }}

{{/* CEL: the patch that sets a field of the spec of a pod: (list $field $value). */}}
{{- define "gpushare.setField" -}}
[JSONPatch{op: 'add', path: '/spec/{{ first . }}', value: '{{ last . }}'}]
{{- end }}

{{/* CEL: whether only gpushare writes the annotation `key`. */}}
{{- define "gpushare.ownAnnotation" -}}
key.matches('^(gpushare/(promise|allocation|limits)$|scheduler[.]framework[.]gpushare[.]allocation$|ALIYUN_COM_GPU_MEM_)')
{{- end }}

{{/*
CEL: whether only gpushare may set the variable `variable` in pods with a share, because it chooses GPUs, or sets or lifts a limit.
NVIDIA's container toolkit reads NVIDIA_*, CUDA reads CUDA_MPS_*, and HAMi-core the others of CUDA_* and GPU_* (src/multiprocess and src/libvgpu.c of
Project-HAMi/HAMi-core), but for CUDA_DISABLE_CONTROL, with which HAMi's plugin does not preload it (docs/config.md of Project-HAMi/HAMi).
An API server counts 26 for a variable so, and would count 147 for one pattern of all names.
*/}}
{{- define "gpushare.ownVariable" -}}
variable.name in ['NVIDIA_VISIBLE_DEVICES', 'CUDA_DISABLE_CONTROL', 'CUDA_REDIRECT', 'CUDA_TASK_PRIORITY', 'GPU_CORE_UTILIZATION_POLICY']
{{- range list "CUDA_DEVICE_MEMORY_" "CUDA_DEVICE_SM_LIMIT" "CUDA_MPS_" "NVIDIA_GPU_MEMORY_" "ALIYUN_COM_GPU_MEM_" }}
|| variable.name.startsWith('{{ . }}')
{{- end }}
{{- end }}

{{/* CEL: which containers of a list set which of these variables, in words. */}}
{{- define "gpushare.ownVariables" -}}
{{ . }}.filter(container, container.?env.orValue([]).exists(variable, {{ include "gpushare.ownVariable" . }}))
.map(container, container.name + ' sets ' + container.env.filter(variable, {{ include "gpushare.ownVariable" . }}).map(variable, variable.name).join(', '))
{{- end }}

{{/*
CEL: whether the variable `variable` chooses GPUs for a container. A value that chooses none is left, because without it the value of the
image holds, which is often `all`.
*/}}
{{- define "gpushare.choosesGpus" -}}
variable.name == 'NVIDIA_VISIBLE_DEVICES' && (has(variable.valueFrom) || !(variable.?value.orValue('') in ['', 'none', 'void']))
{{- end }}

{{/* CEL: whether a container of a list chooses GPUs. */}}
{{- define "gpushare.chooseGpus" -}}
{{ . }}.exists(container, container.?env.orValue([]).exists(variable, {{ include "gpushare.choosesGpus" . }}))
{{- end }}

{{/*
CEL: the patches that remove such variables from the containers of a field of the spec: (list $field $concerned), where an expression about
the `container` holds. They replace the whole list of a container, because each variable that is removed moves the next ones. transformList: Kubernetes 1.32.
*/}}
{{- define "gpushare.stripVariables" -}}
object.spec.?{{ first . }}.orValue([]).transformList(place, container, {{ last . }}
&& container.?env.orValue([]).exists(variable, {{ include "gpushare.choosesGpus" . }}),
JSONPatch{op: 'replace', path: '/spec/{{ first . }}/' + string(place) + '/env',
value: container.env.filter(variable, !({{ include "gpushare.choosesGpus" . }}))})
{{- end }}

{{/* CEL: whether an update changes annotations and nothing else. */}}
{{- define "gpushare.changesAnnotationsOnly" -}}
[dyn(object), dyn(oldObject)].all(each,
each.all(key, key == 'metadata' || dyn(object)[?key] == dyn(oldObject)[?key]))
&& [dyn(object.metadata), dyn(oldObject.metadata)].all(each,
each.all(key, key in ['annotations', 'managedFields', 'resourceVersion', 'generation']
|| dyn(object.metadata)[?key] == dyn(oldObject.metadata)[?key]))
{{- end }}

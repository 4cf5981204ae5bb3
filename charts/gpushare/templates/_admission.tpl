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

{{/* CEL: whether a container of the pod requests one of our resources. */}}
{{- define "gpushare.asksForShare" -}}
{{- include "gpushare.asksFor" (include "gpushare.isManaged" .) }}
{{- end }}

{{/*
A policy that sets a field of new pods where two expressions hold: (list $ $name $lacksField $asks $field $value). A pod for which
the expressions fail is created without the field.
*/}}
{{- define "gpushare.setOnPods" -}}
{{- $version := include "gpushare.mutatingVersion" (first .) | trim }}
{{- include "gpushare.policyHead" (list (first .) (index . 1) "MutatingAdmissionPolicy" $version) }}
spec:
  failurePolicy: Ignore
  reinvocationPolicy: IfNeeded
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [pods]
        operations: [CREATE]
  matchConditions:
    - name: without-one-of-its-own
      expression: {{ index . 2 }}
    - name: asks-for-a-share
      expression: >-
        {{- index . 3 | nindent 8 }}
  mutations:
    # A patch, because an apply configuration is rejected for pods that have a variable twice.
    - patchType: JSONPatch
      jsonPatch:
        expression: >-
          [JSONPatch{op: 'add', path: '/spec/{{ index . 4 }}', value: '{{ last . }}'}]
---
{{ include "gpushare.policyHead" (list (first .) (index . 1) "MutatingAdmissionPolicyBinding" $version) }}
spec:
  policyName: {{ index . 1 | quote }}
{{- end }}

{{/* CEL: whether only gpushare writes the annotation `key`. */}}
{{- define "gpushare.ownAnnotation" -}}
key.matches('^(gpushare/(promise|allocation)$|scheduler[.]framework[.]gpushare[.]allocation$|ALIYUN_COM_GPU_MEM_)')
{{- end }}

{{/* CEL: whether the variable `variable` is what gpushare sets for containers with a share. */}}
{{- define "gpushare.ownVariable" -}}
variable.name.matches('^(NVIDIA_VISIBLE_DEVICES$|CUDA_MPS_|CUDA_DEVICE_MEMORY_|CUDA_DEVICE_SM_LIMIT|ALIYUN_COM_GPU_MEM_)')
{{- end }}

{{/* CEL: which containers of a list set which of these variables, in words. */}}
{{- define "gpushare.ownVariables" -}}
{{ . }}.filter(container, container.?env.orValue([]).exists(variable, {{ include "gpushare.ownVariable" . }}))
.map(container, container.name + ' sets ' + container.env.filter(variable, {{ include "gpushare.ownVariable" . }}).map(variable, variable.name).join(', '))
{{- end }}

{{/* CEL: whether an update changes annotations and nothing else. */}}
{{- define "gpushare.changesAnnotationsOnly" -}}
[dyn(object), dyn(oldObject)].all(each,
each.all(key, key == 'metadata' || dyn(object)[?key] == dyn(oldObject)[?key]))
&& [dyn(object.metadata), dyn(oldObject.metadata)].all(each,
each.all(key, key in ['annotations', 'managedFields', 'resourceVersion', 'generation']
|| dyn(object.metadata)[?key] == dyn(oldObject.metadata)[?key]))
{{- end }}

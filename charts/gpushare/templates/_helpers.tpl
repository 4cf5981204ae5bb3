{{- define "gpushare.name" -}}
{{- include "gpushare.cut" (list (.Values.nameOverride | default .Chart.Name) 63) }}
{{- end }}

{{/* A shortened name still ends like a name: (list $name $length). */}}
{{- define "gpushare.cut" -}}
{{- regexReplaceAll "[-.]+$" (first . | trunc (last . | int)) "" }}
{{- end }}

{{/* The release's name if it contains the chart's, otherwise <release>-<chart>. */}}
{{- define "gpushare.fullname" -}}
{{- $name := include "gpushare.name" . }}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) }}
{{- include "gpushare.cut" (list (.Values.fullnameOverride | default $full) 63) }}
{{- end }}

{{/* The full name with an ending: (list $ "-mps"). */}}
{{- define "gpushare.part" -}}
{{- $ending := last . }}
{{- include "gpushare.cut" (list (include "gpushare.fullname" (first .)) (sub 63 (len $ending))) }}{{ $ending }}
{{- end }}

{{- define "gpushare.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "gpushare.fullname" .) "default") }}
{{- end }}

{{/* What the API server calls a service account: (list $ $name). */}}
{{- define "gpushare.userName" -}}
system:serviceaccount:{{ include "gpushare.namespace" (first .) }}:{{ last . }}
{{- end }}

{{/* A repository; a registry for all images of a chart of charts replaces the one in it: (list $ $repository). */}}
{{- define "gpushare.repository" -}}
{{- $repository := last . }}
{{- with ((first .).Values.global | default dict).imageRegistry }}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $repository "") }}
{{- end }}
{{- $repository }}
{{- end }}

{{- define "gpushare.image" -}}
{{- $repository := include "gpushare.repository" (list . .Values.image.repository) }}
{{- $tag := .Values.image.tag }}
{{- if not (or $tag .Values.image.digest) }}
{{- $tag = .Chart.AppVersion }}
{{- end }}
{{- $image := $repository }}
{{- with $tag }}
{{- $image = printf "%s:%s" $image . }}
{{- end }}
{{- with .Values.image.digest }}
{{- $image = printf "%s@%s" $image . }}
{{- end }}
{{- $image | quote }}
{{- end }}

{{- define "gpushare.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{/* Labels are rendered from a dict, so that no value is read as a number and no key occurs twice. */}}
{{- define "gpushare.labels" -}}
{{- $version := dict "app.kubernetes.io/version" .Chart.AppVersion }}
{{- merge $version (include "gpushare.releaseLabels" . | fromYaml) (.Values.commonLabels | default dict) | toYaml }}
{{- end }}

{{/* Labels of all pods of the release; they never change. */}}
{{- define "gpushare.releaseLabels" -}}
{{- $names := dict "app.kubernetes.io/name" (include "gpushare.name" .) "app.kubernetes.io/instance" .Release.Name }}
{{- merge (dict) (.Values.selectorLabelsOverride | default dict) $names | toYaml }}
{{- end }}

{{/* The labels that select the pods of one component: (list $ "mps"). */}}
{{- define "gpushare.selectorLabels" -}}
{{- $found := (first .).Values.selectorLabelsOverride | default (include "gpushare.releaseLabels" (first .) | fromYaml) }}
{{- merge (dict "app.kubernetes.io/component" (last .)) $found | toYaml }}
{{- end }}

{{/* The config files of config.map, parsed, as YAML that maps each name to its file; fails on those that cannot be read. */}}
{{- define "gpushare.parsedConfigs" -}}
{{- $parsed := dict }}
{{- $schema := .Files.Get "files/config.schema.json" | fromJson }}
{{- range $name, $given := .Values.config.map }}
{{- $config := kindIs "string" $given | ternary (toString $given | fromYaml) $given }}
{{- with index $config "Error" | default "" | toString }}
{{- $found := contains "cannot unmarshal array" . | ternary "a list" "no mapping" }}
{{- if contains "cannot unmarshal" . }}
{{- fail (printf "config.map.%s is %s, but a config file has the keys version, flags, resources and sharing: give the text of such a file" $name $found) }}
{{- end }}
{{- fail (printf "config.map.%s is not YAML (%s): correct the file" $name .) }}
{{- end }}
{{- include "gpushare.rejectMistakes" (list (printf "config.map.%s" $name) $config $schema) }}
{{- $_ := set $parsed $name $config }}
{{- end }}
{{- toYaml $parsed }}
{{- end }}

{{/*
Fails on keys that no config has, and where the kind is wrong, such as text instead of a mapping, because values.schema.json
does not look into texts: (list $place $found $schema). Everything else is left to the daemon, which names line and column.
*/}}
{{- define "gpushare.rejectMistakes" -}}
{{- $place := index . 0 }}
{{- $found := index . 1 }}
{{- $schema := index . 2 }}
{{- $wanted := "" }}
{{- if $schema.properties }}
{{- $wanted = "map" }}
{{- else if $schema.items }}
{{- $wanted = "slice" }}
{{- end }}
{{- if and $wanted (ne (kindOf $found) $wanted) }}
{{- $kinds := dict "map" "a mapping" "slice" "a list" "string" "text" "bool" "true or false" "invalid" "nothing" }}
{{- fail (printf "%s is %s, but must be %s: correct the file; gpushare check-config shows all its mistakes" $place (get $kinds (kindOf $found) | default "a number") (get $kinds $wanted)) }}
{{- end }}
{{- if eq $wanted "map" }}
{{- range $key, $below := $found }}
{{- if not (hasKey $schema.properties $key) }}
{{- fail (printf "%s has no key %s; the keys there are %s: correct the file; gpushare check-config shows all its mistakes" $place $key (keys $schema.properties | sortAlpha | join ", ")) }}
{{- end }}
{{- if not (kindIs "invalid" $below) }}
{{- include "gpushare.rejectMistakes" (list (printf "%s.%s" $place $key) $below (index $schema.properties $key)) }}
{{- end }}
{{- end }}
{{- else if eq $wanted "slice" }}
{{- range $index, $each := $found }}
{{- include "gpushare.rejectMistakes" (list (printf "%s[%d]" $place $index) $each $schema.items) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The name of the config file that nodes use, empty where they use none. */}}
{{- define "gpushare.defaultConfig" -}}
{{- $names := keys .Values.config.map }}
{{- $found := .Values.config.default }}
{{- $decided := not (empty $found) }}
{{- range .Values.config.fallbackStrategies }}
{{- if and (not $decided) (or (eq . "empty") (and (eq . "named") (has "default" $names)) (and (eq . "single") (eq (len $names) 1))) }}
{{- $decided = true }}
{{- $found = get (dict "empty" "" "named" "default" "single" (first $names)) . }}
{{- end }}
{{- end }}
{{- $found }}
{{- end }}

{{- define "gpushare.configsName" -}}
{{- if .Values.config.name }}
{{- .Values.config.name }}
{{- else if .Values.config.map }}
{{- include "gpushare.part" (list . "-configs") }}
{{- end }}
{{- end }}

{{/* Whether others than the kubelet use the daemon's port: "true" or nothing. */}}
{{- define "gpushare.scraped" -}}
{{- if or .Values.service.enabled .Values.podMonitor.enabled .Values.serviceMonitor.enabled .Values.networkPolicy.from }}true{{ end }}
{{- end }}

{{/* The strategies of the value deviceListStrategy and of all configs, in one text. */}}
{{- define "gpushare.strategies" -}}
{{- $strategies := list (dict "plugin" (dict "deviceListStrategy" .Values.deviceListStrategy)) }}
{{- range include "gpushare.parsedConfigs" . | fromYaml }}
{{- $strategies = append $strategies (.flags | default dict) }}
{{- end }}
{{- range $strategies }}
{{- $strategy := (.plugin | default dict).deviceListStrategy }}
{{- kindIs "slice" $strategy | ternary (join "," $strategy) (toString $strategy) }},
{{- end }}
{{- end }}

{{/* Whether any config allocates GPUs by volume-mounts: "true" or nothing. */}}
{{- define "gpushare.volumeMounts" -}}
{{- if contains "volume-mounts" (include "gpushare.strategies" .) }}true{{ end }}
{{- end }}

{{/* Whether any config allocates GPUs by CDI: "true" or nothing. Simulated GPUs have no CDI devices. */}}
{{- define "gpushare.cdi" -}}
{{- if and (contains "cdi-" (include "gpushare.strategies" .)) (not .Values.simulate) }}true{{ end }}
{{- end }}

{{/* Whether the daemons have a DRA driver: "true" or nothing. Values of an earlier chart have none. */}}
{{- define "gpushare.dra" -}}
{{- if (.Values.dra | default dict).enabled }}true{{ end }}
{{- end }}

{{/* The kubelet's directories of the DRA driver, as mounts: with the same paths as on the host, which the kubelet is told. */}}
{{- define "gpushare.draPaths" -}}
{{- $root := trimSuffix "/" .Values.kubeletRootDir }}
- name: dra-registry
  path: {{ printf "%s/plugins_registry" $root | quote }}
  type: Directory
- name: dra-driver
  path: {{ printf "%s/plugins/%s" $root .Values.dra.driver | quote }}
  type: DirectoryOrCreate
{{- if not (include "gpushare.cdi" .) }}
# For a file of each claim, which runtimes read.
- name: cdi-claims
  path: {{ include "gpushare.cdiSpecDirs" . | fromYamlArray | last | quote }}
  type: DirectoryOrCreate
{{- end }}
{{- end }}

{{/* The entries of a config whose memory NVIDIA's driver limits, at least on some nodes, as a YAML list; `isolation` of each is a list. */}}
{{- define "gpushare.limitedByDriver" -}}
{{- $sharing := .sharing | default dict }}
{{- $mps := $sharing.mps | default dict }}
{{- $others := concat ($mps.resources | default list) ($mps.sizes | default list) (($sharing.timeSlicing | default dict).resources | default list) }}
{{- $found := list }}
{{- range concat (($sharing.memory | default dict).resources | default list) $others }}
{{- $isolation := kindIs "slice" .isolation | ternary .isolation (list (toString .isolation)) }}
{{- if or (has "driver" $isolation) (has "driver+mps" $isolation) }}
{{- $found = append $found (dict "isolation" $isolation "burst" .burst) }}
{{- end }}
{{- end }}
{{- toYaml $found }}
{{- end }}

{{/* Whether a config has NVIDIA's driver limit memory of real GPUs, at least on some nodes: "true" or nothing. */}}
{{- define "gpushare.namesDriver" -}}
{{- $found := list }}
{{- range include "gpushare.parsedConfigs" . | fromYaml }}
{{- $found = concat $found (include "gpushare.limitedByDriver" . | fromYamlArray) }}
{{- end }}
{{- if and $found (not .Values.simulate) }}true{{ end }}
{{- end }}

{{/* Whether some pods get GPUs without the field CDIDevices of cdi-cri, and so need NVIDIA's runtime: "true" or nothing. */}}
{{- define "gpushare.withoutCdiField" -}}
{{- $given := list .Values.deviceListStrategy }}
{{- if and .Values.config.map (not .Values.deviceListStrategy) }}
{{- $given = list }}
{{- range include "gpushare.parsedConfigs" . | fromYaml }}
{{- $given = append $given ((.flags | default dict).plugin | default dict).deviceListStrategy }}
{{- end }}
{{- end }}
{{- $found := false }}
{{- range $given }}
{{- if not (contains "cdi-cri" (toString .)) }}{{ $found = true }}{{ end }}
{{- end }}
{{- if $found }}true{{ end }}
{{- end }}

{{/* Why the driver limits nothing for an entry of a config, by the values, or nothing: (list $ $config $entry). */}}
{{- define "gpushare.notLimited" -}}
{{- $values := (first .).Values }}
{{- $strategy := $values.deviceListStrategy | default (((index . 1).flags | default dict).plugin | default dict).deviceListStrategy | default "envvar" }}
{{- $strategy = kindIs "slice" $strategy | ternary (join "," $strategy) (toString $strategy) }}
{{- if not (or $values.simulate ($values.driverLimits | default dict).enabled) }}
{{- if (last .).burst }}driverLimits.enabled is false, and only its agent sets limits with a burst
{{- else if not (contains "cdi-" $strategy) }}deviceListStrategy is {{ $strategy }} and driverLimits.enabled is false, and the hook of NVIDIA's toolkit, which is part of CDI, or the agent sets limits
{{- end }}
{{- end }}
{{- end }}

{{/* The directories of CDI specifications, as a YAML list; values of an earlier chart have none. */}}
{{- define "gpushare.cdiSpecDirs" -}}
{{- $found := (.Values.cdi | default dict).specDirs }}
{{- kindIs "invalid" $found | ternary (list "/etc/cdi" "/var/run/cdi") $found | toYaml }}
{{- end }}

{{/* What CDI needs of the host: programs, libraries of a driver without a root of its own, and the directories of specifications. */}}
{{- define "gpushare.cdiMounts" -}}
- name: host-usr
  mountPath: /host/usr
  readOnly: true
  mountPropagation: HostToContainer
{{- $dirs := include "gpushare.cdiSpecDirs" . | fromYamlArray }}
{{- range $number, $path := $dirs }}
- name: cdi-{{ $number }}
  mountPath: {{ $path | quote }}
  {{- if ne $path (last $dirs) }}
  readOnly: true
  {{- end }}
{{- end }}
{{- end }}

{{- define "gpushare.cdiVolumes" -}}
- name: host-usr
  hostPath:
    path: /usr
    type: Directory
{{- range $number, $path := include "gpushare.cdiSpecDirs" . | fromYamlArray }}
- name: cdi-{{ $number }}
  hostPath:
    path: {{ $path | quote }}
    type: DirectoryOrCreate
{{- end }}
{{- end }}

{{- define "gpushare.cdiEnvironment" -}}
{{- with include "gpushare.cdiSpecDirs" . | fromYamlArray }}
- name: CDI_SPEC_DIRS
  value: {{ join "," . | quote }}
{{- end }}
{{- with (.Values.cdi | default dict).nvidiaHookPath }}
- name: NVIDIA_CDI_HOOK_PATH
  value: {{ . | quote }}
{{- end }}
{{- if not (include "gpushare.driverRoot" .) }}
- name: CONTAINER_DRIVER_ROOT
  value: /host
{{- end }}
{{- end }}

{{/* Whether a config shares by MPS, as replicas or as isolation of memory units, at least on some nodes: "true" or nothing. */}}
{{- define "gpushare.sharesByMps" -}}
{{- $sharing := .sharing | default dict }}
{{- $found := $sharing.mps }}
{{- range ($sharing.memory | default dict).resources }}
{{- range (kindIs "slice" .isolation | ternary .isolation (list (toString .isolation))) }}
{{- $found = or $found (has . (list "mps" "driver+mps")) }}
{{- end }}
{{- end }}
{{- if $found }}true{{ end }}
{{- end }}

{{/*
A resource that pods can request: the first one of the config that nodes use. The chart does not know the models of the
GPUs: it assumes that whole ones match the first pattern in resources.gpus.
*/}}
{{- define "gpushare.resource" -}}
{{- $default := include "gpushare.defaultConfig" . }}
{{- if .Values.helmTest.resource }}
{{- .Values.helmTest.resource }}
{{- else if not $default }}
{{- "aliyun.com/gpu-mem" }}
{{- else }}
{{- $config := get (include "gpushare.parsedConfigs" . | fromYaml) $default | default dict }}
{{- include "gpushare.resourcesOf" $config | fromYamlArray | first }}
{{- end }}
{{- end }}

{{/* The resources that nodes with a config offer, as a YAML list: shared ones first; whole GPUs of every pattern. */}}
{{- define "gpushare.resourcesOf" -}}
{{- $sharing := .sharing | default dict }}
{{- $found := list }}
{{- range ($sharing.memory | default dict).resources }}
{{- $found = append $found .name }}
{{- end }}
{{- range ($sharing.mps | default dict).sizes }}
{{- range .slices }}
{{- $found = append $found (printf "nvidia.com/gpu-%v" .size) }}
{{- end }}
{{- end }}
{{- range $way := list ($sharing.timeSlicing | default dict) ($sharing.mps | default dict) }}
{{- range $way.resources }}
{{- $name := include "gpushare.withDomain" .name }}
{{- $found = append $found (.rename | default (eq (toString $way.renameByDefault) "true" | ternary (printf "%s.shared" $name) $name)) }}
{{- end }}
{{- end }}
{{- range ($.resources | default dict).gpus }}
{{- $found = append $found .name }}
{{- end }}
{{- $names := list }}
{{- range append $found "gpu" }}
{{- $names = append $names (include "gpushare.withDomain" .) }}
{{- end }}
{{- uniq $names | toYaml }}
{{- end }}

{{/*
The resources that the extender and the admission policies are about, as a YAML list: those of every config, and
Aliyun's, which node labels can turn on.
*/}}
{{- define "gpushare.managedResources" -}}
{{- $found := .Values.resourceNames | default list }}
{{- if not $found }}
{{- $found = list "aliyun.com/gpu-mem" "aliyun.com/gpu-core.percentage" }}
{{- range include "gpushare.parsedConfigs" . | fromYaml }}
{{- $found = concat $found (include "gpushare.resourcesOf" . | fromYamlArray) }}
{{- end }}
{{- end }}
{{- uniq $found | toYaml }}
{{- end }}

{{/* The name of a resource; nvidia.com/ is added if it has no domain. */}}
{{- define "gpushare.withDomain" -}}
{{- contains "/" (toString .) | ternary . (printf "nvidia.com/%v" .) }}
{{- end }}

{{/* Whether daemons may read ConfigMaps that cordon GPUs: "true" or nothing. */}}
{{- define "gpushare.readsCordons" -}}
{{- if or .Values.cluster.cordonConfigMaps .Values.cluster.cordonNodes }}true{{ end }}
{{- end }}

{{/* Whether daemons follow the pods of their nodes: "true" or nothing. */}}
{{- define "gpushare.followsPods" -}}
{{- $follows := .Values.cluster.followPods }}
{{- if kindIs "invalid" $follows }}
{{- $follows = or .Values.scheduler.enabled .Values.partitioning.enabled }}
{{- end }}
{{- if and .Values.cluster.enabled $follows }}true{{ end }}
{{- end }}

{{/* Whether the daemon is in the network of its node, also by the name that NVIDIA's chart has for it: "true" or nothing. */}}
{{- define "gpushare.hostNetwork" -}}
{{- if or .Values.hostNetwork (.Values.devicePlugin | default dict).enableHostNetwork }}true{{ end }}
{{- end }}

{{/* Whether the next daemon of a node stands by before the present one ends: "true" or nothing. */}}
{{- define "gpushare.standsBy" -}}
{{- $surge := (.Values.updateStrategy.rollingUpdate | default dict).maxSurge }}
{{- if not (has (toString $surge) (list "" "0" "<nil>")) }}true{{ end }}
{{- end }}

{{/*
Everything is set by environment variables, not by arguments, so that a command that is run in the pod by `kubectl exec`, such as
`gpushare list`, uses the same as the daemon.
*/}}
{{- define "gpushare.environment.node-daemon" -}}
# A kubelet that shows this pod knows all pods, so units that it shows as free are free.
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{ include "gpushare.logEnvironment" . }}
{{- if .Values.cluster.enabled }}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: NODE_LABELS
  value: {{ .Values.cluster.nodeLabels | quote }}
- name: CORDON_CONFIGMAP
  value: {{ include "gpushare.readsCordons" . | default "false" | quote }}
{{- if include "gpushare.followsPods" . }}
- name: FOLLOW_PODS
  value: "true"
{{- end }}
{{- if .Values.partitioning.enabled }}
- name: PARTITIONING
  value: "true"
{{- if include "gpushare.dividesMig" . }}
- name: MIG_ROOT
  value: {{ .Values.partitioning.mig.root | quote }}
{{- end }}
{{- end }}
{{- if .Values.cluster.events }}
- name: EVENTS
  value: "true"
{{- end }}
{{- end }}
{{- if (.Values.driverLimits | default dict).enabled }}
- name: DRIVER_LIMITS_AGENT
  value: "true"
- name: DRIVER_LIMITS_ROOT
  value: {{ .Values.driverLimits.root | quote }}
{{- end }}
{{- if include "gpushare.dra" . }}
- name: KUBELET_ROOT
  value: {{ trimSuffix "/" .Values.kubeletRootDir | quote }}
{{- if not (include "gpushare.cdi" .) }}
- name: CDI_SPEC_DIRS
  value: {{ include "gpushare.cdiSpecDirs" . | fromYamlArray | last | quote }}
{{- end }}
{{- end }}
{{- if .Values.usage.containerMetrics }}
- name: CONTAINER_METRICS
  value: "true"
{{- end }}
{{- if .Values.usage.hamiMetrics }}
- name: HAMI_METRICS
  value: "true"
{{- end }}
{{- if .Values.usage.aliyunMetrics }}
- name: ALIYUN_METRICS
  value: "true"
{{- end }}
{{- if include "gpushare.configsName" . }}
- name: CONFIG_DIRECTORY
  value: /etc/gpushare/configs
{{- with .Values.config.default }}
- name: DEFAULT_CONFIG
  value: {{ . | quote }}
{{- end }}
- name: FALLBACK_STRATEGIES
  value: {{ join "," .Values.config.fallbackStrategies | quote }}
{{- end }}
{{- if .Values.simulate }}
- name: SIMULATE
  value: /etc/gpushare/simulated/gpus.yaml
{{- end }}
{{- if .Values.mps.enabled }}
- name: MPS_ROOT
  value: {{ .Values.mps.root | quote }}
{{- with .Values.mps.protocol }}
- name: MPS_PROTOCOL
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- if include "gpushare.standsBy" . }}
- name: STAND_BY
  value: "true"
{{- end }}
{{- if .Values.httpPort }}
- name: HTTP_ADDRESS
  value: ":{{ .Values.httpPort }}"
{{- end }}
{{- $flags := dict
  "migStrategy" "MIG_STRATEGY"
  "failOnInitError" "FAIL_ON_INIT_ERROR"
  "deviceListStrategy" "DEVICE_LIST_STRATEGY"
  "deviceIDStrategy" "DEVICE_ID_STRATEGY"
  "nvidiaDriverRoot" "NVIDIA_DRIVER_ROOT"
  "nvidiaDevRoot" "NVIDIA_DEV_ROOT"
  "compatWithCPUManager" "PASS_DEVICE_SPECS"
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
{{- range $key, $variable := $flags }}
{{- $value := index $.Values $key }}
{{- if not (kindIs "invalid" $value) }}
- name: {{ $variable }}
  value: {{ kindIs "slice" $value | ternary (join "," $value) $value | quote }}
{{- end }}
{{- end }}
{{- with include "gpushare.driverEnvironment" . | trim }}
{{ . }}
{{- end }}
{{- if include "gpushare.cdi" . }}
{{ include "gpushare.cdiEnvironment" . | trim }}
{{- end }}
# For NVIDIA's runtime: show this container every GPU and the management library, nothing more.
- name: NVIDIA_VISIBLE_DEVICES
  value: all
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
{{- if include "gpushare.mig" . }}
# And let it ask about MIG instances that are not its own.
- name: NVIDIA_MIG_MONITOR_DEVICES
  value: all
{{- end }}
{{- end }}

{{/* Whether the daemons see the cgroups of their nodes, for the limits of containers and for pods that still run: "yes" or nothing. */}}
{{- define "gpushare.readsCgroups" -}}
{{- if or (include "gpushare.driverCounts" .) (.Values.driverLimits | default dict).readCgroups (include "gpushare.dra" .) }}yes{{ end }}
{{- end }}

{{/* The volume of the files that the daemon and gpushare driver-limits exchange. */}}
{{- define "gpushare.driverLimitsVolume" -}}
- name: driver-limits-root
  hostPath:
    path: {{ .Values.driverLimits.root | quote }}
    type: DirectoryOrCreate
{{- end }}

{{/* The volume of the host's cgroups of version 2. The driver finds a cgroup by its path, which is the same on the host. */}}
{{- define "gpushare.cgroupsVolume" -}}
- name: host-cgroups
  hostPath:
    path: /sys/fs/cgroup
    type: Directory
{{- end }}

{{/* Whether MIG instances are offered, by a value, by any of the named configs or on request: "yes" or nothing. */}}
{{- define "gpushare.mig" -}}
{{- $strategies := list .Values.migStrategy }}
{{- if not .Values.migStrategy }}
{{- range include "gpushare.parsedConfigs" . | fromYaml }}
{{- $strategies = append $strategies (.flags | default dict).migStrategy }}
{{- end }}
{{- end }}
{{- if or (has "single" $strategies) (has "mixed" $strategies) (include "gpushare.dividesMig" .) }}yes{{ end }}
{{- end }}

{{/* Whether the daemons have MIG instances made on request: "yes" or nothing. */}}
{{- define "gpushare.dividesMig" -}}
{{- if and .Values.partitioning.enabled .Values.partitioning.mig.enabled }}yes{{ end }}
{{- end }}

{{/* Whether the daemons see the processes of their nodes: "yes" or nothing. */}}
{{- define "gpushare.hostPID" -}}
{{- if or .Values.usage.hostPID .Values.usage.readProcesses }}yes{{ end }}
{{- end }}

{{/* Whether the driver itself counts what containers use, because it limits their memory: "yes" or nothing. */}}
{{- define "gpushare.driverCounts" -}}
{{- if or (include "gpushare.namesDriver" .) (.Values.driverLimits | default dict).enabled }}yes{{ end }}
{{- end }}

{{/*
The driver shows MIG instances only with SYS_ADMIN, which Kubernetes does not grant together with allowPrivilegeEscalation: false. The kernel
shows the environment of processes that have capabilities only with SYS_PTRACE.
*/}}
{{- define "gpushare.securityContext" -}}
{{- $context := deepCopy .Values.securityContext }}
{{- $needed := list }}
{{- if include "gpushare.mig" . }}
{{- $context = omit $context "allowPrivilegeEscalation" }}
{{- $needed = append $needed "SYS_ADMIN" }}
{{- end }}
{{- if .Values.usage.readProcesses }}
{{- $needed = append $needed "SYS_PTRACE" }}
{{- end }}
{{- if $needed }}
{{- $capabilities := get $context "capabilities" | default dict }}
{{- $added := concat (get $capabilities "add" | default list) $needed | uniq }}
{{- $_ := set $context "capabilities" (set $capabilities "add" $added) }}
{{- end }}
{{- toYaml $context }}
{{- end }}

{{- define "gpushare.logEnvironment" -}}
- name: LOG_FORMAT
  value: {{ .Values.logFormat }}
- name: LOG_LEVEL
  value: {{ .Values.logLevel }}
{{- end }}

{{/* The driver's own root directory, if any: with "/" NVIDIA's runtime provides the host's driver. */}}
{{- define "gpushare.driverRoot" -}}
{{- .Values.nvidiaDriverRoot | default "" | trimSuffix "/" }}
{{- end }}

{{- define "gpushare.driverEnvironment" -}}
{{- if include "gpushare.driverRoot" . }}
# A config file cannot know where this chart mounts the driver.
- name: CONTAINER_DRIVER_ROOT
  value: /driver-root
{{- end }}
{{- end }}

{{- define "gpushare.driverMount" -}}
{{- if include "gpushare.driverRoot" . }}
- name: driver-root
  mountPath: /driver-root
  readOnly: true
  # A driver container mounts the driver there later, and again when it restarts.
  mountPropagation: HostToContainer
{{- end }}
{{- end }}

{{- define "gpushare.driverVolume" -}}
{{- with include "gpushare.driverRoot" . }}
- name: driver-root
  hostPath:
    path: {{ . | quote }}
    type: Directory
{{- end }}
{{- end }}

{{- define "gpushare.mpsVolume" -}}
- name: mps-root
  hostPath:
    path: {{ .Values.mps.root | quote }}
    type: DirectoryOrCreate
{{- end }}

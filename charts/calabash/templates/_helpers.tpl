{{- define "calabash.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Call with (dict "root" $ "component" "agent"). */ -}}
{{- define "calabash.selector" -}}
app.kubernetes.io/name: calabash
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "calabash.labels" -}}
{{- with .component -}}
{{ include "calabash.selector" $ }}
{{ else -}}
app.kubernetes.io/name: calabash
{{ end -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: calabash
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- /* The security of containers that need nothing of their node. */ -}}
{{- define "calabash.restricted" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end -}}

{{- /* Where the pods of a component go; call with (dict "values" .Values.admission). */ -}}
{{- define "calabash.where" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "calabash.egress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
- ports:
    {{- range .ports }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  {{- end }}
{{- end -}}

{{- /* What API servers ask; call with .Values.networkPolicies.apiServer. */ -}}
{{- define "calabash.ingress" -}}
- ports:
    - {port: https, protocol: TCP}
  {{- with .sources }}
  from:
    {{- range . }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  {{- end }}
{{- end -}}

{{- /* The rule by which Prometheus reaches the metrics of a component; empty where no peer is named. */ -}}
{{- define "calabash.scraping" -}}
{{- with .Values.networkPolicies.prometheus -}}
- ports:
    - {port: metrics, protocol: TCP}
  from: {{- toYaml . | nindent 4 }}
{{- end -}}
{{- end -}}

{{- define "calabash.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "calabash.selector" . | nindent 8 }}
{{- end -}}

{{- define "calabash.admission-settings" -}}
{{- $admission := .Values.admission -}}
namespace: {{ .Release.Namespace }}
exempt_namespaces: {{ toJson $admission.exemptNamespaces }}
port: {{ $admission.port }}
probe_port: {{ $admission.probePort }}
{{- with $admission.clientCA }}
{{- if .configMapName }}
client_authority: /etc/calabash-clients/{{ .key }}
client_names: {{ toJson .names }}
{{- end }}
{{- end }}
{{- if ne .Values.planner.handshake "extender" }}
second_scheduler: false
{{- end }}
{{- with .Values.planner.shards }}
shards: {{ toJson . }}
{{- end }}
{{- with .Values.claims.extendedResourceName }}
extended_resources: [{{ toJson . }}]
{{- end }}
{{- with .Values.gangs.owners }}
gang_owners: {{ toJson . }}
{{- end }}
{{- with .Values.topology.levels }}
topology_levels: {{ toJson . }}
{{- end }}
{{- if $admission.certManager.enabled }}
certificate_dir: /etc/calabash-certificate
{{- end }}
aliyun_memory_mib: {{ $admission.units.aliyunMemoryMib }}
alauda_memory_mib: {{ $admission.units.alaudaMemoryMib }}
volcano_memory_mib: {{ $admission.units.volcanoMemoryMib }}
{{- end -}}

{{- define "calabash.scheduler-image" -}}
{{- with .Values.scheduler.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" $.Capabilities.KubeVersion.Version) }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* "true" where the cluster has claims, and they are wanted. */ -}}
{{- define "calabash.claims" -}}
{{- if and .Values.claims.enabled (semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version) }}true{{ end }}
{{- end }}

{{- /* The policy for unmanaged processes, and the allocation API; each has a former name. */ -}}
{{- define "calabash.unmanaged-processes" -}}
{{- include "calabash.renamed" (dict "agent" .Values.agent "former" "strangers" "name" "unmanagedProcesses" "default" "tell") -}}
{{- end -}}
{{- define "calabash.allocation-api" -}}
{{- include "calabash.renamed" (dict "agent" .Values.agent "former" "door" "name" "allocationApi" "default" "tokens") -}}
{{- end -}}

{{- /* The value of an agent's setting that may be given by its former name. */ -}}
{{- define "calabash.renamed" -}}
{{- $former := get .agent .former -}}
{{- $present := get .agent .name -}}
{{- if and $former $present (ne $former $present) (ne $present .default) -}}
{{- fail (printf "agent.%s is %s, and agent.%s, its former name, is %s; hint: remove agent.%s" .name $present .former $former .former) -}}
{{- end -}}
{{- $former | default $present -}}
{{- end -}}

{{- /* Annotations of objects that exist for the time of an uninstallation; call with their weight. */ -}}
{{- define "calabash.after-deletion" -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

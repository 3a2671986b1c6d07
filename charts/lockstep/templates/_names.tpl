{{/* Labels by which Services and Deployments find their pods; fixed for the life of an install. Argument: the component. */}}
{{- define "lockstep.selector" -}}
app.kubernetes.io/name: lockstep
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* Labels of every object. Argument: (list root component). */}}
{{- define "lockstep.labels" -}}
{{- $root := index . 0 -}}
{{ include "lockstep.selector" (index . 1) }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The image, by digest where one is given. */}}
{{- define "lockstep.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{/* Security context of every pod. */}}
{{- define "lockstep.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Security context of every container. */}}
{{- define "lockstep.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Secret that the serving certificate is mounted from. */}}
{{- define "lockstep.certificateSecret" -}}
{{ if eq .Values.certificates.source "files" }}{{ .Values.certificates.files.secret }}{{ else }}lockstep-issued-certificate{{ end }}
{{- end }}

{{/* Secret with the token of the chart's own registry. */}}
{{- define "lockstep.registryTokenSecret" -}}
{{ .Values.registry.tokenSecret | default "lockstep-registry-token" }}
{{- end }}

{{/* How the chart's own registry is spoken to. */}}
{{- define "lockstep.registryScheme" -}}
{{ if .Values.registry.tlsSecret }}https{{ else }}http{{ end }}
{{- end }}

{{/* Annotations of what exists only while the chart is taken out. Argument: the order. */}}
{{- define "lockstep.releaseHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* Egress to the cluster's DNS. */}}
{{- define "lockstep.egressDns" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- end }}

{{/* Egress to the API server, whose address a chart cannot know. */}}
{{- define "lockstep.egressApiServer" -}}
- ports: [{{ range $i, $port := .Values.networkPolicy.apiServerPorts }}{{ if $i }}, {{ end }}{port: {{ $port }}, protocol: TCP}{{ end }}]
{{- end }}

{{/* Scraping by an operator of Prometheus. Argument: its values. */}}
{{- define "lockstep.scrape" -}}
- {port: probes, path: /metrics, interval: {{ .interval }}}
{{- end }}

{{- define "lockstep.labels" -}}
app.kubernetes.io/name: lockstep
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "lockstep.selectorLabels" -}}
app.kubernetes.io/name: lockstep
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The user that the operator is to the API server. */}}
{{- define "lockstep.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:lockstep
{{- end }}

{{- /* Whether the API server evaluates mutating policies: from Kubernetes 1.36 on. */}}
{{- define "lockstep.servesPolicies" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" }}true{{ end }}
{{- end }}

{{- /* Whether the API server evaluates validating policies: from Kubernetes 1.30 on. */}}
{{- define "lockstep.servesValidatingPolicies" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" }}true{{ end }}
{{- end }}

{{- /* What brings versions into pods: `policy`, `webhook` or `template`. */}}
{{- define "lockstep.admissionMode" -}}
{{- $mode := .Values.admission.mode }}
{{- if eq $mode "auto" }}{{ ternary "policy" "webhook" (eq (include "lockstep.servesPolicies" .) "true") }}
{{- else if has $mode (list "policy" "webhook" "template") }}{{ $mode }}
{{- else }}{{ fail (printf "admission.mode: there is no %q: choose auto, policy, webhook or template" $mode) }}
{{- end }}
{{- end }}

{{- /* Whether changes of configs are entered before their write returns. In the mode `template` no workload joins a release; an installation
for some namespaces has no rights beyond them, unless somebody wants it so. */}}
{{- define "lockstep.configWebhook" -}}
{{- $enabled := toString .Values.configWebhook.enabled }}
{{- $is_wanted := or (eq $enabled "true") (and (eq $enabled "auto") (empty .Values.namespaces)) }}
{{- if and $is_wanted (ne (include "lockstep.admissionMode" .) "template") }}true{{ end }}
{{- end }}

{{- /* Whether the operator answers the API server itself. */}}
{{- define "lockstep.servesWebhooks" -}}
{{- if or (eq (include "lockstep.admissionMode" .) "webhook") (include "lockstep.configWebhook" .) }}true{{ end }}
{{- end }}

{{- /* Where the policies apply: where Lockstep works, and nowhere else. Part of a binding. */}}
{{- define "lockstep.bindingScope" }}
{{- with .Values.namespaces }}
  matchResources:
    namespaceSelector:
      matchExpressions:
      - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }}}
{{- end }}
{{- end }}

{{- define "lockstep.image" -}}
{{- with .Values.image.digest }}{{ $.Values.image.repository }}@{{ . }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag }}{{ end }}
{{- end }}

{{- /* Where our pods may run, and with whose credentials their image is pulled. */}}
{{- define "lockstep.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- /* What the Pod Security Standard `restricted` asks for, and a root file system that nobody writes to. */}}
{{- define "lockstep.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "lockstep.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

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

{{- /* What rewrites pods and pins workloads: `policy` or `webhook`. */}}
{{- define "lockstep.admissionMode" -}}
{{- $mode := .Values.admission.mode }}
{{- if eq $mode "auto" }}{{ ternary "policy" "webhook" (eq (include "lockstep.servesPolicies" .) "true") }}
{{- else if has $mode (list "policy" "webhook") }}{{ $mode }}
{{- else if eq $mode "template" }}{{ fail "admission.mode: template is not available yet: choose auto, policy or webhook" }}
{{- else }}{{ fail (printf "admission.mode: there is no %q: choose auto, policy or webhook" $mode) }}
{{- end }}
{{- end }}

{{- /* Whether the operator answers the API server itself. */}}
{{- define "lockstep.servesWebhooks" -}}
{{- if or (eq (include "lockstep.admissionMode" .) "webhook") .Values.configWebhook.enabled }}true{{ end }}
{{- end }}

{{- /* How many operators there are: where pods wait for them, one is not enough. Zero is a choice, too. */}}
{{- define "lockstep.replicas" -}}
{{- if kindIs "invalid" .Values.replicas }}{{ ternary 2 1 (eq (include "lockstep.admissionMode" .) "webhook") }}
{{- else }}{{ .Values.replicas | int }}
{{- end }}
{{- end }}

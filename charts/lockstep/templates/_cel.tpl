{{- /*
The expressions that the admission policies share. The same rules stand in Rust in crates/core/src/admission.rs; an end-to-end test
compares the two.

`lookup` says how a config's key (KEY below, such as "configmap/app") finds the name of its version: a condition and a value.
*/}}

{{- /* A patch of one reference, as the innermost part of a walk: for each element `e` with index `i` of a list. */}}
{{- define "lockstep.cel.patchEach" -}}
{{- $key := printf "(%q + %s.orValue(\"\"))" (printf "%s/" .kind) .name -}}
{{- $condition := .lookup.condition | replace "KEY" $key -}}
{{- $value := .lookup.value | replace "KEY" $key -}}
{{ .list }}.transformList({{ .index }}, {{ .element }}, {{ $condition }}, JSONPatch{op: "replace", path: {{ .path }}, value: {{ $value }}})
{{- end }}

{{- /* The references in a list of containers: envFrom and env. `only`, if given, says which containers `c`. */}}
{{- define "lockstep.cel.containerPatches" -}}
{{- $containers := .containers -}}
{{- $lookup := .lookup -}}
{{- $only := .only | default "true" -}}
{{- $walks := list -}}
{{- range $place := list
      (dict "kind" "configmap" "list" "envFrom" "name" "e.?configMapRef.?name" "path" "configMapRef/name")
      (dict "kind" "secret" "list" "envFrom" "name" "e.?secretRef.?name" "path" "secretRef/name")
      (dict "kind" "configmap" "list" "env" "name" "e.?valueFrom.?configMapKeyRef.?name" "path" "valueFrom/configMapKeyRef/name")
      (dict "kind" "secret" "list" "env" "name" "e.?valueFrom.?secretKeyRef.?name" "path" "valueFrom/secretKeyRef/name") }}
{{- $path := printf "\"/spec/%s/\" + string(ci) + \"/%s/\" + string(ei) + \"/%s\"" $containers $place.list $place.path -}}
{{- $inner := include "lockstep.cel.patchEach" (dict "lookup" $lookup "kind" $place.kind "name" $place.name "list" (printf "c.%s" $place.list) "index" "ei" "element" "e" "path" $path) -}}
{{- $walks = append $walks (printf "object.spec.?%s.orValue([]).transformList(ci, c, %s && has(c.%s), %s).flatten()" $containers $only $place.list $inner) -}}
{{- end -}}
{{- join " +\n" $walks -}}
{{- end }}

{{- /* The references in volumes, and in the sources of projected ones. */}}
{{- define "lockstep.cel.volumePatches" -}}
{{- $lookup := .lookup -}}
{{- $walks := list -}}
{{- range $place := list
      (dict "kind" "configmap" "name" "v.?configMap.?name" "path" "configMap/name")
      (dict "kind" "secret" "name" "v.?secret.?secretName" "path" "secret/secretName") }}
{{- $path := printf "\"/spec/volumes/\" + string(vi) + \"/%s\"" $place.path -}}
{{- $walks = append $walks (include "lockstep.cel.patchEach" (dict "lookup" $lookup "kind" $place.kind "name" $place.name "list" "object.spec.?volumes.orValue([])" "index" "vi" "element" "v" "path" $path)) -}}
{{- end -}}
{{- range $place := list
      (dict "kind" "configmap" "name" "s.?configMap.?name" "path" "configMap/name")
      (dict "kind" "secret" "name" "s.?secret.?name" "path" "secret/name") }}
{{- $path := printf "\"/spec/volumes/\" + string(vi) + \"/projected/sources/\" + string(si) + \"/%s\"" $place.path -}}
{{- $inner := include "lockstep.cel.patchEach" (dict "lookup" $lookup "kind" $place.kind "name" $place.name "list" "v.projected.sources" "index" "si" "element" "s" "path" $path) -}}
{{- $walks = append $walks (printf "object.spec.?volumes.orValue([]).transformList(vi, v, has(v.projected) && has(v.projected.sources), %s).flatten()" $inner) -}}
{{- end -}}
{{- join " +\n" $walks -}}
{{- end }}

{{- /* All patches of a pod. */}}
{{- define "lockstep.cel.podPatches" -}}
{{- $lookup := . -}}
{{- $walks := list -}}
{{- range $containers := list "containers" "initContainers" "ephemeralContainers" -}}
{{- $walks = append $walks (include "lockstep.cel.containerPatches" (dict "containers" $containers "lookup" $lookup)) -}}
{{- end -}}
{{- join " +\n" (append $walks (include "lockstep.cel.volumePatches" (dict "lookup" $lookup))) -}}
{{- end }}

{{- /* The pins in a text. What is not a pin is passed over. */}}
{{- define "lockstep.cel.pinList" -}}
{{ . }}.split(",").filter(p, p.matches("^(configmap|secret)/[a-z0-9.-]+=[a-z0-9.-]+$"))
{{- end }}

{{- /*
The pins of a list with those of one config beside each other, the last written of them last: each gets its place into its middle
(configmap/app=100003=app-5f2c9a1b7d), and then they are sorted. That is charged as the square of their number, so a list that nobody could
have written by hand stays as it is.
*/}}
{{- define "lockstep.cel.pinsInOrder" -}}
size({{ . }}) > 400 ? {{ . }} : {{ . }}.transformList(i, p, p.replace("=", "=" + string(100000 + i) + "=")).sort()
{{- end }}

{{- /* A map from pins in order: {"configmap/app": "app-5f2c9a1b7d"}. Who writes a pin twice means the last one. */}}
{{- define "lockstep.cel.pinMap" -}}
{{ . }}.transformMapEntry(i, p, i + 1 == size({{ . }}) || !{{ . }}[i + 1].startsWith(p.split("=")[0] + "="), {p.split("=")[0]: p.substring(p.lastIndexOf("=") + 1)})
{{- end }}

{{- /* The keys of the configs whose content a template's containers see, sorted, each once; with them, as "configmap/" or "secret/", what has no name. */}}
{{- define "lockstep.cel.references" -}}
(
  ({{ . }}.spec.?containers.orValue([]) + {{ . }}.spec.?initContainers.orValue([])).map(c,
    c.?envFrom.orValue([]).map(e, has(e.configMapRef) ? "configmap/" + e.configMapRef.?name.orValue("") : "secret/" + e.?secretRef.?name.orValue("")) +
    c.?env.orValue([]).filter(e, has(e.valueFrom)).map(e, has(e.valueFrom.configMapKeyRef) ? "configmap/" + e.valueFrom.configMapKeyRef.?name.orValue("") : "secret/" + e.valueFrom.?secretKeyRef.?name.orValue(""))
  ).flatten() +
  {{ . }}.spec.?volumes.orValue([]).map(v, has(v.configMap) ? "configmap/" + v.configMap.?name.orValue("") : "secret/" + v.?secret.?secretName.orValue("")) +
  {{ . }}.spec.?volumes.orValue([]).map(v, v.?projected.?sources.orValue([]).map(s, has(s.configMap) ? "configmap/" + s.configMap.?name.orValue("") : "secret/" + s.?secret.?name.orValue(""))).flatten()
)
{{- end }}

{{- /* The list with most of its repetitions gone, at a cost that grows with its length and not with the square of it. */}}
{{- define "lockstep.cel.distinctInPieces" -}}
size({{ .list }}) <= 600 ? {{ .list }} : lists.range((size({{ .list }}) + {{ sub .piece 1 }}) / {{ .piece }}).map(i, {{ .list }}.slice(i * {{ .piece }}, (i + 1) * {{ .piece }} < size({{ .list }}) ? (i + 1) * {{ .piece }} : size({{ .list }})).distinct()).flatten()
{{- end }}

{{- /*
Whether an object is made from the template of one that is pinned itself: it has its pins already, or is older than the adoption. What
somebody else's controller makes, such as a JobSet or a ScaledJob, is a workload like any other.
*/}}
{{- define "lockstep.cel.isMade" -}}
{{- $makers := list "apps/Deployment" "apps/StatefulSet" "apps/DaemonSet" "apps/ReplicaSet" "batch/CronJob" "batch/Job" "argoproj.io/Rollout" -}}
{{- range .Values.kinds }}{{ $makers = append $makers (printf "%s/%s" .group .kind) }}{{ end -}}
object.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && (o.apiVersion.split("/")[0] + "/" + o.kind) in {{ toJson $makers }})
{{- end }}

{{- /* What makes pods from templates that are pinned when they are written. */}}
{{- define "lockstep.cel.pinningControllers" -}}
["ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController"]
{{- end }}

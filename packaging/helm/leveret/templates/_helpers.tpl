{{- define "leveret.name" -}}
{{- if contains "leveret" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-leveret" (.Release.Name | trunc 44 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "leveret.selector" -}}
app.kubernetes.io/name: leveret
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "leveret.labels" -}}
{{ include "leveret.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ if .Values.upstream }}pool{{ else }}broker{{ end }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* "yes" if the pods have a disk: a broker by default, a pool if it is told to. */}}
{{- define "leveret.disk" -}}
{{- $enabled := .Values.persistence.enabled -}}
{{- if kindIs "invalid" $enabled }}{{ $enabled = not .Values.upstream }}{{ end -}}
{{- if $enabled }}yes{{ end -}}
{{- end -}}

{{/* Seconds of a step of the drain that differs between pool and broker: list VALUES VALUE DEFAULT-OF-A-POOL. */}}
{{- define "leveret.step" -}}
{{- $values := index . 0 -}}
{{- $seconds := index . 1 -}}
{{- if kindIs "invalid" $seconds }}{{ $seconds = ternary (index . 2) 0 (not (empty $values.upstream)) }}{{ end -}}
{{- int $seconds -}}
{{- end -}}
{{- define "leveret.delay" }}{{ include "leveret.step" (list .Values .Values.drain.delay 10) }}{{ end -}}
{{- define "leveret.spread" }}{{ include "leveret.step" (list .Values .Values.drain.spread 15) }}{{ end -}}
{{- define "leveret.grace" -}}
{{- add (include "leveret.delay" .) (include "leveret.spread" .) .Values.drain.timeout .Values.drain.margin -}}
{{- end -}}

{{/* A value as text: Helm reads whole numbers as floating-point ones, and would print 1e+06. */}}
{{- define "leveret.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else if kindIs "slice" . }}{{ join "," . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{/* The container's variables. They win over the file. */}}
{{- define "leveret.env" -}}
{{- if .Values.upstream }}
- { name: LEVERET_UPSTREAM, value: {{ join "," .Values.upstream | quote }} }
{{- end }}
{{- range $name, $port := .Values.listeners }}
- { name: LEVERET_{{ upper $name }}, value: {{ ternary (printf "%s:%d" $.Values.listenAddress (int $port)) "off" (gt (int $port) 0) | quote }} }
{{- end }}
- { name: LEVERET_DRAIN_DELAY, value: {{ include "leveret.delay" . | printf "%ss" | quote }} }
- { name: LEVERET_DRAIN_SPREAD, value: {{ include "leveret.spread" . | printf "%ss" | quote }} }
- { name: LEVERET_DRAIN_TIMEOUT, value: {{ int .Values.drain.timeout | printf "%ds" | quote }} }
{{- if .Values.definitionsSecret }}
- { name: LEVERET_DEFINITIONS, value: /etc/leveret/definitions/definitions.json }
{{- end }}
{{- if .Values.tls.existingSecret }}
- { name: LEVERET_TLS_CERT, value: /etc/leveret/tls/tls.crt }
- { name: LEVERET_TLS_KEY, value: /etc/leveret/tls/tls.key }
{{- end }}
{{- if .Values.config }}
- { name: LEVERET_CONFIG, value: /etc/leveret/config/leveret.toml }
{{- end }}
{{- range $key, $value := .Values.settings }}
- { name: LEVERET_{{ upper $key }}, value: {{ include "leveret.text" $value | quote }} }
{{- end }}
{{- end -}}

{{/* What would be rendered, and not do what it says. */}}
{{- define "leveret.check" -}}
{{- if not .Values.listeners.http }}{{ fail "listeners.http: the probes need it" }}{{ end -}}
{{- range $key, $_ := .Values.settings -}}
{{- if or (hasKey $.Values.listeners $key) (has $key (list "upstream" "drain_delay" "drain_spread" "drain_timeout" "definitions" "tls_cert" "tls_key")) -}}
{{- fail (printf "settings.%s: the chart has a value of its own for it" $key) -}}
{{- end -}}
{{- end -}}
{{- range $name, $port := .Values.listeners -}}
{{- if and $port (hasSuffix "s" $name) (not (hasSuffix "prometheus" $name)) (ne $name "ws") (not $.Values.tls.existingSecret) -}}
{{- fail (printf "listeners.%s: needs tls.existingSecret" $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.listeners.prometheus) }}{{ fail "serviceMonitor: needs listeners.prometheus" }}{{ end -}}
{{- if and .Values.autoscaling.enabled (or (not .Values.upstream) (include "leveret.disk" .)) -}}
{{- fail "autoscaling: only for a pool without a disk" -}}
{{- end -}}
{{- end -}}

{{- define "varuna.name" -}}
{{- if contains "varuna" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-varuna" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}
{{- define "varuna.account" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}{{ else if .Values.serviceAccount.create }}{{ include "varuna.name" . }}-operator{{ else }}default{{ end -}}
{{- end }}
{{- define "varuna.selector" -}}
app.kubernetes.io/name: varuna-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "varuna.labels" -}}
{{ include "varuna.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "varuna.name" -}}
{{- if contains "varuna" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-varuna" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}
{{- define "varuna.account" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}{{ else if .Values.serviceAccount.create }}{{ include "varuna.name" . }}-operator{{ else }}default{{ end -}}
{{- end }}
{{- /* An image by its digest where one is set, else by its tag: dict "image" IMAGE "chart" .Chart */ -}}
{{- define "varuna.image" -}}
{{- if .image.digest }}{{ .image.repository }}@{{ .image.digest }}{{ else }}{{ .image.repository }}:{{ .image.tag | default .chart.AppVersion }}{{ end -}}
{{- end }}
{{- /* The coordinators' priority class: one that exists may be named without making one. */ -}}
{{- define "varuna.coordinatorClass" -}}
{{- if .Values.coordinator.priorityClass.name }}{{ .Values.coordinator.priorityClass.name }}{{ else if .Values.coordinator.priorityClass.create }}varuna-coordinator{{ end -}}
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
{{- define "varuna.arguments" -}}
- --lease-name={{ include "varuna.name" . }}-operator
- --gpu-resource={{ .Values.worker.gpuResource }}
- --coordinator-image={{ include "varuna.image" (dict "image" .Values.coordinator.image "chart" .Chart) }}
{{- with include "varuna.coordinatorClass" . }}
- --coordinator-priority-class={{ . }}
{{- end }}
{{- with .Values.worker.image }}
- --worker-image={{ . }}
{{- end }}
{{- if .Values.namespaced }}
- --namespace={{ .Release.Namespace }}
{{- end }}
{{- range .Values.nodeSignals }}
- --node-signal={{ . }}
{{- end }}
{{- range .Values.topologyLabels }}
- --topology-label={{ . }}
{{- end }}
{{- end }}
{{- define "varuna.environment" -}}
- {name: VARUNA_LOG, value: {{ .Values.logLevel | quote }}}
- {name: VARUNA_POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: VARUNA_POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: VARUNA_POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
{{- with .Values.extraEnv }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- define "tuner.labels" -}}
app.kubernetes.io/name: tuner-controller
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tuner.image" -}}
{{- if contains "@" .Values.image.repository -}}
{{ .Values.image.repository }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "tuner.katibExperiments" -}}
{{- .Values.katib.experiments | default (ternary "all" "annotated" .Values.katib.definitions) }}
{{- end }}

{{- define "tuner.claim" -}}
{{ .Values.storage.existingClaim | default "tuner-controller" }}
{{- end }}

{{/* The version in which the cluster serves MutatingAdmissionPolicy; "" if it does not. */}}
{{- define "tuner.mutatingPolicies" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
v1
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" -}}
v1beta1
{{- end -}}
{{- end }}

{{/* What the controller may do in a namespace of a tenant. It reads no Secret and impersonates nobody. */}}
{{- define "tuner.rules" -}}
# The experiments: the controller adds and removes its finalizer, and writes the status. It creates only the
# reruns that spec.confirm of an experiment asks for, in its namespace.
- apiGroups: [tuner.dev]
  resources: [experiments]
  verbs: [create, get, list, watch, patch]
- apiGroups: [tuner.dev]
  resources: [experiments/status]
  verbs: [patch]
# Objects that name an experiment as their owner, where the cluster asks for that right.
- apiGroups: [tuner.dev]
  resources: [experiments/finalizers]
  verbs: [update]
{{- if .Values.katib.enabled }}
# The same of Katib's: the controller also writes the defaults back. Trials and suggestions show what it does.
- apiGroups: [kubeflow.org]
  resources: [experiments]
  verbs: [get, list, watch, patch]
- apiGroups: [kubeflow.org]
  resources: [trials, suggestions]
  verbs: [create, get, list, watch, patch, delete]
- apiGroups: [kubeflow.org]
  resources: [experiments/status, trials/status, suggestions/status]
  verbs: [patch]
- apiGroups: [kubeflow.org]
  resources: [experiments/finalizers]
  verbs: [update]
# Templates of trials that an experiment names, in its own namespace, or labeled katib.kubeflow.org/component: trial-templates.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
# The claim that Katib has for pbt and for resumePolicy: FromVolume. It goes with its experiment.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [create, get]
{{- end }}
# What has happened to an experiment, and why a pod could not be created, scheduled or started.
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch, list, watch]
# Each attempt of a trial is a Job. The controller creates, watches and deletes Jobs, and never changes one.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [create, get, list, watch, delete]
# The cluster creates their pods. The controller deletes a pod to stop a running trial.
# `patch` sets an annotation with the parameters that a trial asks for (`defineByRun`).
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch, delete]
# The output of trials, with their metrics.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# A headless Service for each attempt with several workers, by which they find each other.
- apiGroups: [""]
  resources: [services]
  verbs: [create, get, delete]
# The quota and limits of the namespace: a trial that does not fit waits instead of failing.
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [limitranges]
  verbs: [list]
# The label of the namespace with the queue of trials that name none.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- if .Values.controller.kueue }}
# Why Kueue keeps a trial waiting, and whether its queue exists.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list, watch]
- apiGroups: [kueue.x-k8s.io]
  resources: [localqueues]
  verbs: [list]
{{- end }}
{{- range .Values.controller.kinds }}
# The values say that spec.trial.template may be one of these.
- apiGroups: [{{ .group }}]
  resources: [{{ join ", " .resources }}]
  verbs: [create, get, list, watch, delete]
{{- end }}
{{- end }}

{{/* Of a write of one of Katib's Experiments: whether its client read an earlier version, and since then only the status has changed. */}}
{{- define "tuner.statusOnlyEdits" -}}
- name: run-by-tuner
  expression: oldObject.?status.?tuner.hasValue()
- name: of-an-earlier-version
  expression: has(object.metadata.resourceVersion) && object.metadata.resourceVersion != oldObject.metadata.resourceVersion
# The generation counts the changes of the spec.
- name: nothing-else-has-changed
  expression: >-
    ['uid', 'generation', 'labels', 'annotations', 'ownerReferences'].all(key,
    object.metadata[?key] == oldObject.metadata[?key])
# Tuner's own comes and goes with what runs.
- name: nor-another-finalizer
  expression: >-
    object.metadata.?finalizers.orValue([]).filter(each, each != 'tuner.dev/stop') ==
    oldObject.metadata.?finalizers.orValue([]).filter(each, each != 'tuner.dev/stop')
# A merge patch may have a resourceVersion without a generation, which is then the stored one: its client may have seen another spec.
# A client that sends the status or the finalizers that it read sends the whole object, unless it is the controller.
- name: the-whole-object
  expression: object.?status != oldObject.?status || object.metadata.?finalizers != oldObject.metadata.?finalizers
- name: by-a-client
  expression: request.userInfo.username != 'system:serviceaccount:{{ .Release.Namespace }}:tuner-controller'
{{- end }}

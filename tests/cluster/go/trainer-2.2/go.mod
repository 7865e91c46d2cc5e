module tuner.test/trainer

go 1.25.0

require github.com/kubeflow/trainer/v2 v2.2.0

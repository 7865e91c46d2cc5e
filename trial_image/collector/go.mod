module tuner.dev/collector

go 1.24

module tuner.test/logs

go 1.24.0

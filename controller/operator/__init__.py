"""The controller in the cluster, `tuner controller`: custom resources in, experiments of
`controller.app` run, their status out.
"""

"""What an API server does with the objects of `resource.k8s.io`: limits, gates, status and rights.

Read from Kubernetes 1.36: `pkg/apis/resource/validation` and `pkg/registry/resource`.
"""

"""Which devices the kubelet gave to which container."""

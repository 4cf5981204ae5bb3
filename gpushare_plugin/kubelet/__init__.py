"""The kubelet: device-plugin and pod-resources gRPC over Unix sockets."""

"""Protobuf and gRPC code made by `make generate` from `proto/`; never edited by hand."""

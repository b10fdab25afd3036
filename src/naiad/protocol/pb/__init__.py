"""The messages of the gRPC API, from the proto files beside this folder."""

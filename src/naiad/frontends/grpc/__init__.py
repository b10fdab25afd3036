"""The gRPC front end: HTTP/2 connections, gRPC framing and the services of the v2 protocol."""

"""The HTTP API as an ASGI application, to be mounted in another server."""

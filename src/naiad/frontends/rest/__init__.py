"""The v2 protocol's HTTP API: routes and handlers, whatever carries the bytes.

The socket server (``frontends/http``) and the ASGI application (``frontends/asgi``) are two
carriers of this one API.
"""

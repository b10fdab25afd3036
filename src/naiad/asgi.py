"""Naiad inside another ASGI server: ``uvicorn --factory naiad.asgi:create_app``."""

from naiad.server.application import Application, create_app

__all__ = ["Application", "create_app"]

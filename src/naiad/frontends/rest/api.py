"""The table of routes: the whole API in one list."""

from typing import Any

from naiad.frontends.rest.generate import GenerateHandlers
from naiad.frontends.rest.health import HealthHandlers
from naiad.frontends.rest.infer import InferHandler
from naiad.frontends.rest.log_settings import LogSettingsHandlers
from naiad.frontends.rest.long_work import LongWork
from naiad.frontends.rest.metadata import MetadataHandlers
from naiad.frontends.rest.openapi import OpenApiHandler
from naiad.frontends.rest.options import RestOptions
from naiad.frontends.rest.repository import RepositoryHandlers
from naiad.frontends.rest.router import Route
from naiad.frontends.rest.shared_memory import SharedMemoryHandlers
from naiad.frontends.rest.trace_setting import TraceSettingHandlers
from naiad.frontends.serving import ServingEngine


def build_routes(
    engine: ServingEngine[Any], options: RestOptions, long_work: LongWork
) -> list[Route]:
    """Every route of the API over ``engine``, in the order in which they are tried.

    Args:
        engine: answers.
        options: what is accepted.
        long_work: for large bodies; whoever carries the API closes it.
    """
    routes = [
        # The infer route first: what is asked most is found with one comparison.
        *InferHandler(engine, options, long_work).routes(),
        *GenerateHandlers(engine, options, long_work).routes(),
        *HealthHandlers(engine).routes(),
        *MetadataHandlers(engine).routes(),
        *RepositoryHandlers(engine, long_work).routes(),
        *SharedMemoryHandlers(engine).routes(),
        *TraceSettingHandlers(engine).routes(),
        *LogSettingsHandlers(engine).routes(),
    ]
    return [*routes, *OpenApiHandler(routes, engine.server_version).routes()]

"""A whole server as an ASGI application: models from settings, the HTTP API, no port of its own."""

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from naiad.clock import Clock, SystemClock
from naiad.errors import InternalError, NaiadError, UnsupportedError
from naiad.frontends.asgi.lifespan import run_lifespan
from naiad.frontends.asgi.messages import Receive, Scope, Send, response_body, response_start
from naiad.frontends.rest.response import error_response
from naiad.protocol.log_settings import LogSettingValues
from naiad.server.build import build_application
from naiad.server.settings import OPTIONS, Settings, make_settings, read_environment

if TYPE_CHECKING:
    from naiad.engine.engine import Engine
    from naiad.frontends.asgi.application import AsgiApplication

_NOT_STARTED: Final = error_response(
    503,
    "the models are not loaded: the host must run this application's lifespan, or await its "
    "startup() and shutdown() in its own",
)


def create_app(**options: Any) -> "Application":
    """The server that ``naiad serve`` with the same options would be, without its ports.

    Hosts that run the lifespan protocol load and unload the models; where the application is
    mounted in another one, whose lifespan most frameworks don't pass on, await `startup` and
    `shutdown` in that. Logging is left to the host.

    Args:
        options: those of ``naiad serve`` with underscores, for example ``model_repository``, which
            takes a path or several; what is not given comes from the ``NAIAD_`` environment.

    Raises:
        TypeError: no such option.
        BadOptionError: a value that an option does not take, or options that contradict each other.
    """
    known = {option.name for option in OPTIONS}
    given = read_environment()
    for name, value in options.items():
        option = name.replace("_", "-")
        if option not in known:
            raise TypeError(f"create_app() has no option '{name}'; see naiad serve --help")
        given[option] = _texts(value)
    return Application(make_settings(given), SystemClock())


class Application:
    """An ASGI application that loads its models when it is started; lives on one event loop."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._running: tuple[Engine, AsgiApplication] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or follow the host's life."""
        if scope["type"] == "lifespan":
            await run_lifespan(receive, send, self.startup, self.shutdown)
        elif self._running is not None:
            await self._running[1](scope, receive, send)
        elif scope["type"] == "http":
            body = _NOT_STARTED.body
            await send(response_start(_NOT_STARTED.head, len(body)))
            await send(response_body(body, ends=True))
        else:
            raise ValueError(f"Naiad speaks HTTP and no {scope['type']}")

    async def startup(self) -> None:
        """Load the models of the start; returns when they serve. Does nothing when they do.

        Raises:
            InternalError: a model did not load, and ``exit_on_error`` is true.
        """
        if self._running is not None:
            return
        engine, application = build_application(self._settings, self._clock, _refuse_log_settings)
        try:
            failures = await engine.start()
        except NaiadError:
            await application.close()
            raise
        if failures and self._settings.exit_on_error:
            await engine.stop()
            await application.close()
            raise InternalError(
                "failed to load "
                + "; ".join(f"'{name}': {error.reason()}" for name, error in failures.items())
            )
        self._running = engine, application

    async def shutdown(self) -> None:
        """Answer what was accepted, then unload everything."""
        if self._running is None:
            return
        engine, application = self._running
        await engine.stop()
        self._running = None
        await application.close()


def _refuse_log_settings(values: LogSettingValues) -> None:
    raise UnsupportedError(
        "log settings can not be updated: the program that this application is part of decides how "
        "it logs"
    )


def _texts(value: object) -> list[str]:
    """The value of an option as one would type it."""
    if isinstance(value, str | PathLike):
        return [str(value)]
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, Mapping):
        raise TypeError("an option takes a value or a sequence of values")
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts(item)]
    return [str(value)]

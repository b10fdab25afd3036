"""The HTTP/1.1 server: sockets, framing and limits; what it serves is ``frontends/rest``."""

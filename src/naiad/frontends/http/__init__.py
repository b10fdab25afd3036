"""The HTTP/REST front end: sockets, framing and routes of the v2 protocol."""

from typing import Any

import pytest

from naiad.access.restricted_apis import Api, RestrictedApis, parse_restricted_group
from naiad.frontends.http.head import Head, HeadParser
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.response import HttpError
from naiad.frontends.rest.router import MODEL, BodyKind, Route, Router
from naiad.protocol.forwarded_headers import compile_forward_pattern


def infer(exchange: Exchange) -> None:
    raise AssertionError(exchange)


def load(exchange: Exchange) -> None:
    raise AssertionError(exchange)


ROUTES = [
    Route(MODEL + "/infer", {"POST": infer}, body=BodyKind.TENSORS, api=Api.INFERENCE),
    Route("/load", {"POST": load}, body=BodyKind.FILES, api=Api.MODEL_REPOSITORY),
    Route("/unload", {"POST": load}, api=Api.MODEL_REPOSITORY),
]


def make_parser(**options: Any) -> HeadParser:
    http_options = HttpOptions(**options)
    return HeadParser(Router(ROUTES, http_options.restrictions), http_options)


def parse(text: str, **options: Any) -> Head:
    return make_parser(**options).parse(text.replace("\n", "\r\n").encode() + b"\r\n\r\n")


def post(*headers: str, target: str = "/v2/models/m/infer", version: str = "1.1") -> str:
    return "\n".join([f"POST {target} HTTP/{version}", *headers])


def refused(text: str, **options: Any) -> tuple[bytes, bytes]:
    refusal = parse(text, **options).refusal
    assert refusal is not None
    return refusal.head, refusal.body


def error(raw: bytes, **options: Any) -> HttpError:
    with pytest.raises(HttpError) as caught:
        make_parser(**options).parse(raw)
    return caught.value


def test_a_plain_request() -> None:
    head = parse(post("Host: a", "Content-Length: 12", "Inference-Header-Content-Length: 5"))
    assert head.handler is infer
    assert (head.model_name, head.version) == ("m", -1)
    assert (head.content_length, head.header_length) == (12, 5)
    assert head.is_plain
    assert head.keep_alive
    assert head.refusal is None
    assert not head.is_head


def test_a_body_without_tensors_is_small() -> None:
    assert parse(post("Content-Length: 1048576", target="/unload")).refusal is None
    head, body = refused(post("Content-Length: 1048577", target="/unload"))
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"1048577 bytes exceeds the 1048576 bytes that this route takes" in body
    assert parse(post("Content-Length: 1048577", target="/load")).refusal is None
    assert parse(post("Content-Length: 1048577")).refusal is None


def test_a_known_head_is_found_by_its_bytes() -> None:
    parser = make_parser()
    raw = b"POST /v2/models/m/infer HTTP/1.1\r\n\r\n"
    assert parser.find(raw) is None
    head = parser.parse(raw)
    assert parser.find(raw) is head


def test_heads_do_not_pile_up() -> None:
    parser = make_parser()
    first = b"POST /v2/models/m0/infer HTTP/1.1\r\n\r\n"
    for index in range(1100):
        parser.parse(b"POST /v2/models/m%d/infer HTTP/1.1\r\n\r\n" % index)
    assert parser.find(first) is None
    long = b"POST /v2/models/m/infer HTTP/1.1\r\nX: " + b"x" * 4000 + b"\r\n\r\n"
    parser.parse(long)
    assert parser.find(long) is None


def test_header_names_in_any_case_and_repeated() -> None:
    head = parse(post("cOnTeNt-LeNgTh: 3", "X-a: 1", "x-A: 2"))
    assert head.content_length == 3
    assert head.headers[b"x-a"] == b"1, 2"


@pytest.mark.parametrize(
    ("version", "connection", "keep_alive"),
    [("1.1", "", True), ("1.1", "close", False), ("1.0", "", False), ("1.0", "keep-alive", True)],
)
def test_keep_alive(version: str, connection: str, *, keep_alive: bool) -> None:
    headers = [f"Connection: {connection}"] if connection else []
    head = parse(post(*headers, version=version))
    assert head.keep_alive is keep_alive
    assert head.can_continue is (version == "1.1")


def test_expectations() -> None:
    head = parse(post("Expect: 100-continue", "Content-Length: 3"))
    assert head.expects_continue
    assert not head.is_plain
    assert not parse(post("Expect: 100-continue", version="1.0")).expects_continue


def test_chunked() -> None:
    head = parse(post("Transfer-Encoding: chunked"))
    assert head.is_chunked
    assert not head.is_plain


def test_chunks_count_more_than_a_length_and_end_the_connection() -> None:
    head = parse(post("Content-Length: 5", "Transfer-Encoding: chunked"))
    assert head.is_chunked
    assert head.content_length == 0
    assert not head.keep_alive


def test_a_header_length_means_nothing_where_there_is_no_tail() -> None:
    head = parse(post("Inference-Header-Content-Length: 319", target="/load"))
    assert head.refusal is None
    assert head.header_length is None


@pytest.mark.parametrize(
    ("target", "version"),
    [
        ("/v2/models/m/infer?timeout=1", -1),
        ("http://host:80/v2/models/m/infer?x", -1),
        ("/v2/models/m/versions/7/infer", 7),
        ("/v2/models/m/versions/0/infer", 0),
    ],
)
def test_targets(target: str, version: int) -> None:
    head = parse(post(target=target))
    assert head.handler is infer
    assert (head.model_name, head.version) == ("m", version)


def test_names_are_not_decoded() -> None:
    assert parse(post(target="/v2/models/a%2Fb/infer")).model_name == "a%2Fb"


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"get /v2 HTTP/1.1\r\n\r\n",
        b"GET /v2 x HTTP/1.1\r\n\r\n",
        b"GET /v2 HTTP/1.1\nHost: a\n\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: abc\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nno colon\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(raw: bytes) -> None:
    assert error(raw).status == 400


def test_an_unknown_method_is_not_allowed() -> None:
    assert error(b"BREW /v2 HTTP/1.1\r\n\r\n").status == 405


def test_empty_lines_before_a_request_are_skipped() -> None:
    assert make_parser().parse(b"\r\nPOST /load HTTP/1.1\r\n\r\n").handler is load


def test_an_offer_to_switch_protocols_is_ignored() -> None:
    assert parse(post("Connection: Upgrade", "Upgrade: h2c")).handler is infer


def test_the_number_of_headers_is_limited() -> None:
    raw = post(*(f"X-{i}: 1" for i in range(4)), "").replace("\n", "\r\n").encode() + b"\r\n"
    assert make_parser(max_headers=4).parse(raw).handler is infer
    assert error(raw, max_headers=3).status == 431


def test_a_body_over_the_limit_is_refused_by_its_head() -> None:
    head, body = refused(
        post("Content-Length: 11", "Inference-Header-Content-Length: 1"), max_body_bytes=10
    )
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"body of 11 bytes exceeds the maximum allowed input size of 10 bytes" in body
    assert (
        b"JSON size of 11 bytes exceeds the maximum allowed"
        in refused(post("Content-Length: 11", target="/load"), max_body_bytes=10)[1]
    )


def test_json_over_the_limit_is_refused_by_its_head() -> None:
    head, body = refused(post("Content-Length: 11"), max_input_bytes=10)
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"request JSON size of 11 bytes exceeds the maximum allowed input size of 10" in body
    raw = post("Content-Length: 11", "Inference-Header-Content-Length: 0")
    assert (
        b"Raw input has a byte_size (11 bytes) that exceeds the maximum allowed value of 10 bytes. "
        in refused(raw, max_input_bytes=10)[1]
    )
    assert parse(post("Content-Length: 11", target="/load"), max_input_bytes=10).refusal is None


@pytest.mark.parametrize("value", ["abc", "1.5", "", "1, 2", "0x10", "9" * 30])
def test_a_header_length_that_is_no_number(value: str) -> None:
    text = post("Content-Length: 5", f"Inference-Header-Content-Length: {value}")
    assert refused(text)[1] == (
        b'{"error":"Unable to parse Inference-Header-Content-Length, got: %b"}' % value.encode()
    )


@pytest.mark.parametrize("value", ["6", "-1", "99999999999"])
def test_a_header_length_out_of_range(value: str) -> None:
    text = post("Content-Length: 5", f"Inference-Header-Content-Length: {value}")
    assert refused(text)[1] == (
        b'{"error":"inference header size should be in range (0, 5), got: %b"}' % value.encode()
    )


@pytest.mark.parametrize("value", ["0", "5", "+3"])
def test_a_header_length_in_range(value: str) -> None:
    text = post("Content-Length: 5", f"Inference-Header-Content-Length: {value}")
    head = parse(text)
    assert head.refusal is None
    assert head.header_length == int(value)


LOCKED = RestrictedApis(
    [parse_restricted_group("inference:Admin-Key=sesame", "http-restricted-api", "api")]
)
DENIAL = b'{"error":"This API is restricted, expecting header \'Admin-Key\'"}'


def test_the_header_opens_a_restricted_api() -> None:
    head = parse(post("ADMIN-KEY: sesame", "Content-Length: 12"), restrictions=LOCKED)
    assert head.denial is None
    assert head.handler is infer


@pytest.mark.parametrize(
    "headers", [(), ("admin-key: wrong",), ("admin-key: sesame", "admin-key: sesame")]
)
def test_a_restricted_api_is_closed_to_others(headers: tuple[str, ...]) -> None:
    head = parse(post(*headers, "Content-Length: 12"), restrictions=LOCKED)
    assert head.handler is not infer
    assert head.denial is not None
    assert head.denial.body == DENIAL
    assert head.denial.head.startswith(b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain")
    assert head.is_plain  # a small body is read, so that the connection can be kept


@pytest.mark.parametrize(
    "header", ["Content-Length: 65537", "Transfer-Encoding: chunked", "Expect: 100-continue"]
)
def test_a_body_is_not_read_for_a_denial(header: str) -> None:
    assert refused(post(header), restrictions=LOCKED)[1] == DENIAL


def test_a_restriction_comes_before_the_method() -> None:
    head = parse("GET /v2/models/m/infer HTTP/1.1", restrictions=LOCKED)
    assert head.denial is not None


def test_other_apis_stay_open() -> None:
    assert parse(post(target="/load"), restrictions=LOCKED).handler is load


def test_headers_that_match_are_forwarded_as_they_were_spelled() -> None:
    pattern = compile_forward_pattern("^x-|user")
    head = parse(post("X-Tenant: a", "My-User: b", "Accept: c"), header_forward_pattern=pattern)
    assert head.forwarded == {"X-Tenant": "a", "My-User": "b"}
    assert parse(post("X-Tenant: a")).forwarded == {}

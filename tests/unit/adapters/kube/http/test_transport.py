"""HTTP transport to the API server over connections that break, stall, are refused, or carry invalid responses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.unit.adapters.kube.world import END, OK, STREAM, WAIT_S, Line, Scripted, answer, chunk, until

from calabash.adapters.kube import Expired, HttpKubeClient, KubeError, Mirror
from calabash.adapters.kube.http import transport
from calabash.adapters.kube.http.counts import KubeCounts
from calabash.adapters.kube.objects.core import CONFIG_MAP, POD
from calabash.model.errors import Reason

MAP = b'{"metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"7"},"data":{"k":"v"}}'
Serve = Callable[[Line], None]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Callable[[Serve], Scripted]]:
    made: list[Scripted] = []

    def make(serve: Serve) -> Scripted:
        made.append(Scripted(serve))
        return made[-1]

    yield make
    for one in made:
        one.close()


def always(*answers: bytes) -> Serve:
    """Return a server function that sends one answer for each request, and repeats the last one for all later requests."""
    left = list(answers)
    lock = threading.Lock()

    def serve(line: Line) -> None:
        while line.request():
            with lock:
                reply = left.pop(0) if len(left) > 1 else left[0]
            line.send(reply)

    return serve


def test_calls_share_one_connection_while_nothing_breaks(server: Callable[[Serve], Scripted]) -> None:
    one = server(always(answer(MAP)))
    client = HttpKubeClient(one.access())
    for _ in range(5):
        found = client.get(CONFIG_MAP, "a", "ns")
        assert found is not None
        assert found.data == {"k": "v"}
    assert [len(line.requests) for line in one.lines] == [5]
    assert b"GET /api/v1/namespaces/ns/configmaps/a HTTP/1.1" in one.lines[0].requests[0]


def test_requests_are_counted_by_method_and_status_watches_and_failures_included(
    server: Callable[[Serve], Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = KubeCounts()
    monkeypatch.setattr(transport, "KUBE_COUNTS", counts)
    one = server(
        always(answer(MAP), answer(b"{}", "404 Not Found"), answer(b"{}", "403 Forbidden"), b"nonsense\r\n\r\n")
    )
    client = HttpKubeClient(one.access(), timeout_s=2.0)
    assert client.get(CONFIG_MAP, "a", "ns") is not None
    assert client.get(CONFIG_MAP, "a", "ns") is None
    with pytest.raises(KubeError):
        client.watch(POD, "1")
    with pytest.raises(KubeError):
        client.create(CONFIG_MAP, {"metadata": {"name": "a"}}, "ns")
    assert counts.requests() == {("GET", 200): 1, ("GET", 404): 1, ("WATCH", 403): 1, ("POST", 0): 1}


def test_an_idle_connection_that_was_closed_is_not_used_again(server: Callable[[Serve], Scripted]) -> None:
    closed = threading.Semaphore(0)

    def serve(line: Line) -> None:
        line.request()
        line.send(answer(MAP))
        line.close()
        closed.release()

    one = server(serve)
    client = HttpKubeClient(one.access())
    for count in range(1, 4):
        assert client.create(CONFIG_MAP, {"metadata": {"name": "a"}}, "ns").metadata.uid == "u"
        assert closed.acquire(timeout=WAIT_S)
        assert len(one.lines) == count


def test_connections_that_a_burst_has_left_are_closed_by_later_calls(
    server: Callable[[Serve], Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    together, ended = threading.Barrier(4), threading.Semaphore(0)
    crowd = True

    def serve(line: Line) -> None:
        while line.request():
            if crowd:
                together.wait(WAIT_S)
            line.send(answer(MAP))
        ended.release()

    one = server(serve)
    client = HttpKubeClient(one.access())
    callers = [threading.Thread(target=client.get, args=(CONFIG_MAP, "a", "ns")) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    crowd = False
    clock = time.monotonic
    for later_s in (30.0, 60.0):  # connections that are idle for 45 s are old
        monkeypatch.setattr("calabash.adapters.kube.http.transport.time.monotonic", lambda late=later_s: clock() + late)
        assert client.get(CONFIG_MAP, "a", "ns") is not None
    assert all(ended.acquire(timeout=WAIT_S) for _ in range(3))
    assert len(one.lines) == 4, "the one that was used in between is used again"
    assert not ended.acquire(blocking=False)


def test_a_repeatable_call_survives_a_connection_that_dies_under_it_and_a_creation_does_not(
    server: Callable[[Serve], Scripted],
) -> None:
    def serve(line: Line) -> None:
        line.request()
        line.send(answer(MAP))
        line.request()
        line.close()

    one = server(serve)
    client = HttpKubeClient(one.access())
    assert client.get(CONFIG_MAP, "a", "ns") is not None
    assert client.get(CONFIG_MAP, "a", "ns") is not None
    assert client.patch(CONFIG_MAP, "a", "ns", body={"data": {}}).metadata.uid == "u"
    with pytest.raises(KubeError) as caught:
        client.create(CONFIG_MAP, {"metadata": {"name": "a"}}, "ns")
    assert caught.value.reason is Reason.API_DOWN


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"SSH-2.0-x\r\n\r\n",
        answer(b"<html>"),
        answer(b'{"metadata":{"name":7}}'),
        answer(b"[" * 100_000),
        answer(b"overloaded", "503 Service Unavailable"),
    ],
    ids=["nothing", "half", "other", "html", "type", "deep", "503"],
)
def test_what_is_no_answer_is_an_error_with_a_reason(server: Callable[[Serve], Scripted], reply: bytes) -> None:
    def serve(line: Line) -> None:
        line.request()
        line.send(reply)
        line.close()

    client = HttpKubeClient(server(serve).access())
    with pytest.raises(KubeError) as caught:
        client.get(CONFIG_MAP, "a", "ns")
    assert caught.value.reason is Reason.API_DOWN


def _silent(line: Line) -> None:
    line.request()


def test_a_server_that_accepts_and_is_silent_costs_the_time_out_and_no_more(
    server: Callable[[Serve], Scripted],
) -> None:
    client = HttpKubeClient(server(_silent).access(), timeout_s=0.3)
    began = time.monotonic()
    with pytest.raises(KubeError, match="no answer in time"):
        client.get(CONFIG_MAP, "a", "ns")
    assert time.monotonic() - began < WAIT_S


def test_an_answer_that_trickles_costs_the_time_out_and_no_more(server: Callable[[Serve], Scripted]) -> None:
    def serve(line: Line) -> None:
        line.request()
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            line.send(b" ")
            time.sleep(0.02)

    client = HttpKubeClient(server(serve).access(), timeout_s=0.4)
    began = time.monotonic()
    with pytest.raises(KubeError):
        client.get(CONFIG_MAP, "a", "ns")
    assert time.monotonic() - began < WAIT_S


def test_calls_beyond_the_connections_wait_their_turn(server: Callable[[Serve], Scripted]) -> None:
    gate = threading.Event()

    def serve(line: Line) -> None:
        while line.request():
            gate.wait(WAIT_S)
            line.send(answer(MAP))

    one = server(serve)
    client = HttpKubeClient(one.access(), connections=2)
    done: list[object] = []
    threads = [threading.Thread(target=lambda: done.append(client.get(CONFIG_MAP, "a", "ns"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: sum(len(line.requests) for line in one.lines) == 2)
    gate.set()
    for thread in threads:
        thread.join()
    assert len(done) == 6
    assert len(one.lines) == 2


def test_an_overloaded_server_is_asked_again_after_its_pause(server: Callable[[Serve], Scripted]) -> None:
    busy = answer(b"busy", "429 Too Many Requests", "Retry-After: 0")
    client = HttpKubeClient(server(always(busy, busy, answer(MAP))).access())
    assert client.create(CONFIG_MAP, {"metadata": {"name": "a"}}, "ns").metadata.uid == "u"


def test_a_server_that_stays_overloaded_is_api_down_within_the_time_out(server: Callable[[Serve], Scripted]) -> None:
    busy = answer(b"busy", "429 Too Many Requests", "Retry-After: 60")
    client = HttpKubeClient(server(always(busy)).access())
    with pytest.raises(KubeError) as caught:
        client.get(CONFIG_MAP, "a", "ns")
    assert (caught.value.reason, caught.value.retry_after_s) == (Reason.API_DOWN, 60.0)


def test_a_token_that_is_refused_is_renewed_once(server: Callable[[Serve], Scripted]) -> None:
    refused: list[bool] = []

    def token(again: bool) -> str:
        refused.append(again)
        return "Bearer new" if again else "Bearer old"

    def serve(line: Line) -> None:
        while request := line.request():
            line.send(answer(MAP) if b"Bearer new" in request else answer(b"{}", "401 Unauthorized"))

    client = HttpKubeClient(server(serve).access(token))
    assert client.get(CONFIG_MAP, "a", "ns") is not None
    assert refused == [False, True]
    never = HttpKubeClient(server(always(answer(b"{}", "401 Unauthorized"))).access(token))
    with pytest.raises(KubeError) as caught:
        never.get(CONFIG_MAP, "a", "ns")
    assert caught.value.reason is Reason.NOT_PERMITTED


def test_a_credential_cannot_add_headers(server: Callable[[Serve], Scripted]) -> None:
    one = server(always(answer(MAP)))
    with pytest.raises(KubeError, match="credential"):
        HttpKubeClient(one.access(lambda _refused: "Bearer a\r\nX-Remote-User: admin")).get(CONFIG_MAP, "a", "ns")
    assert all(not line.requests for line in one.lines)


EVENT = b'{"type":"ADDED","object":' + MAP + b"}\n"
MARK = b'{"type":"BOOKMARK","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"9"}}}\n'


def stream(*parts: bytes, end: bytes = END) -> Serve:
    def serve(line: Line) -> None:
        line.request()
        line.send(STREAM)
        for part in parts:
            line.send(chunk(part))
        line.send(end)
        line.close()

    return serve


def test_events_are_whole_however_they_are_cut(server: Callable[[Serve], Scripted]) -> None:
    whole = EVENT + MARK + EVENT
    pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    client = HttpKubeClient(server(stream(*pieces)).access())
    seen = [(event.type.value, event.resource_version) for event in client.watch(CONFIG_MAP, "1", "ns")]
    assert seen == [("ADDED", "7"), ("BOOKMARK", "9"), ("ADDED", "7")]


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (b'{"type":"ERROR","object":{"kind":"Status","message":"too old","reason":"Expired","code":410}}\n', Expired),
        (b'{"type":"ERROR","object":{"kind":"Status","message":"etcd","code":500}}\n', KubeError),
        (b'{"type":"SOMETHING","object":' + MAP + b"}\n", KubeError),
        (b"nonsense\n", KubeError),
    ],
    ids=["expired", "error", "unknown", "nonsense"],
)  # fmt: skip
def test_an_error_in_the_stream_is_raised(
    server: Callable[[Serve], Scripted], event: bytes, error: type[Exception]
) -> None:
    client = HttpKubeClient(server(stream(EVENT, event)).access())
    events = iter(client.watch(CONFIG_MAP, "1", "ns"))
    next(events)
    with pytest.raises(error):
        next(events)


def test_a_stream_that_is_cut_is_told_from_one_that_ends(server: Callable[[Serve], Scripted]) -> None:
    client = HttpKubeClient(server(stream(EVENT, end=b"")).access())
    events = iter(client.watch(CONFIG_MAP, "1", "ns"))
    next(events)
    with pytest.raises(KubeError) as caught:
        next(events)
    assert caught.value.reason is Reason.API_DOWN


def test_a_line_that_is_silent_for_longer_than_bookmarks_are_apart_is_broken(
    server: Callable[[Serve], Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calabash.adapters.kube.http.client._SILENCE_S", 0.2)
    hold = threading.Event()

    def serve(line: Line) -> None:
        line.request()
        line.send(STREAM + chunk(EVENT))
        hold.wait(WAIT_S)

    client = HttpKubeClient(server(serve).access())
    events = iter(client.watch(CONFIG_MAP, "1", "ns"))
    next(events)
    with pytest.raises(KubeError, match="bookmark"):
        next(events)
    hold.set()


def test_a_refused_watch_says_why(server: Callable[[Serve], Scripted]) -> None:
    gone = answer(b'{"kind":"Status","message":"too old","reason":"Expired","code":410}', "410 Gone")
    with pytest.raises(Expired):
        HttpKubeClient(server(always(gone)).access()).watch(CONFIG_MAP, "1", "ns")
    no = answer(b'{"kind":"Status","message":"may not","reason":"Forbidden","code":403}', "403 Forbidden")
    with pytest.raises(KubeError) as caught:
        HttpKubeClient(server(always(no)).access()).watch(POD, "1")
    assert caught.value.reason is Reason.NOT_PERMITTED


def test_a_mirror_of_a_server_that_forgets_between_two_pages_begins_again(server: Callable[[Serve], Scripted]) -> None:
    page = b'{"metadata":{"resourceVersion":"7","continue":"x"},"items":[' + MAP + b"]}"
    gone = answer(b'{"kind":"Status","reason":"Expired","code":410}', "410 Gone")
    last = b'{"metadata":{"resourceVersion":"8"},"items":[' + MAP + b"]}"
    replies = [answer(page), gone, answer(last)]

    def serve(line: Line) -> None:
        while request := line.request():
            if b"watch=1" in request:
                line.send(STREAM)
                return
            line.send(replies.pop(0))

    mirror = Mirror(HttpKubeClient(server(serve).access()), CONFIG_MAP)
    mirror.start()
    assert mirror.synced(WAIT_S)
    mirror.stop()
    assert (len(mirror), mirror.lists, replies) == (1, 1, [])


def test_an_address_where_nobody_listens_is_api_down(server: Callable[[Serve], Scripted]) -> None:
    one = server(always(OK))
    one.close()
    with pytest.raises(KubeError) as caught:
        HttpKubeClient(one.access(), timeout_s=60).get(CONFIG_MAP, "a", "ns")
    assert caught.value.reason is Reason.API_DOWN

"""Tests of the admission server over TLS, with the requests of API servers and an API server in memory."""

from __future__ import annotations

import base64
import datetime
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.certificates import client_certificate
from tests.unit.kubernetes.admission.applied import applied

from calabash.adapters.kube.objects.core import NAMESPACE, SECRET
from calabash.adapters.kube.objects.resources import QUEUE
from calabash.cli.programs.cluster import admission, read_settings
from calabash.kubernetes.admission.review import read_review
from calabash.kubernetes.admission.run import AdmissionProgram
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.webhooks import mutating, validating
from calabash.kubernetes.objects import names
from calabash.kubernetes.serving_certificates.authority import KeyPair, make_authority
from calabash.kubernetes.serving_certificates.keeper import MUTATING, VALIDATING, CertificateKeeper
from calabash.model.errors import CalabashError, Reason
from calabash.transport.listening import listen
from calabash_testing.api_server.client import MemoryKube

EXAMPLES = Path(__file__).parents[4] / "examples" / "kube" / "dialects"
SETTINGS = AdmissionSettings()
NAMES = ("127.0.0.1",)


@pytest.fixture
def kube() -> MemoryKube:
    client = MemoryKube()
    client.create(MUTATING, mutating(SETTINGS))
    client.create(VALIDATING, validating(SETTINGS))
    for name, labels in (("team", {}), ("dark", {names.ADMISSION: "off"})):
        client.create(NAMESPACE, {"metadata": {"name": name, "labels": labels}})
    return client


def eventually(check: Callable[[], object]) -> None:
    import time

    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def program(kube: MemoryKube) -> Iterator[AdmissionProgram]:
    running = AdmissionProgram(kube, SETTINGS, listener=listen("127.0.0.1", 0), names=NAMES, refresh_s=0.02)
    running.start()
    eventually(running.ready)
    yield running
    running.stop()


def connect(program: AdmissionProgram, client: MemoryKube) -> HTTPSConnection:
    found = client.get(MUTATING, SETTINGS.configuration)
    assert found is not None
    context = ssl.create_default_context(cadata=base64.b64decode(found.webhooks[0].client_config.ca_bundle).decode())
    return HTTPSConnection("127.0.0.1", program.server.port, context=context, timeout=60)


def ask(connection: HTTPSConnection, path: str, pod: Any, namespace: str = "team", **more: Any) -> Any:
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": "CREATE",
            "namespace": namespace,
            "userInfo": {"username": "ann", "groups": ["system:authenticated"]},
            "object": pod,
            "oldObject": None,
            "dryRun": False,
            **more,
        },
    }
    connection.request(
        "POST", f"{path}?timeout=5s", body=json.dumps(review), headers={"Content-Type": "application/json"}
    )
    reply = connection.getresponse()
    assert reply.status == 200
    answer = json.loads(reply.read())
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert answer["response"]["uid"] == "u-1"
    return answer["response"]


def example(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())


def test_a_pod_is_brought_into_form_and_then_found_valid(program: AdmissionProgram, kube: MemoryKube) -> None:
    connection, pod = connect(program, kube), example("hami")
    response = ask(connection, "/mutate", pod)
    assert (response["allowed"], response["patchType"]) == (True, "JSONPatch")
    pod = applied(pod, json.loads(base64.b64decode(response["patch"])))
    assert pod["spec"]["containers"][0]["resources"]["limits"][names.MEMORY] == "3000Mi"
    assert json.loads(pod["metadata"]["annotations"][names.REQUEST])["tenant"] == "team"
    for path in ("/mutate", "/validate"):
        assert ask(connection, path, pod) == {"uid": "u-1", "allowed": True}


def test_a_denial_says_what_and_what_to_do_in_one_line(program: AdmissionProgram, kube: MemoryKube) -> None:
    junk = example("nvidia-mig")
    junk["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/mig-junk": 1}
    response = ask(connect(program, kube), "/mutate", junk)
    assert response["allowed"] is False
    assert response["status"]["code"] == 422
    assert response["status"]["message"].startswith("container main: nvidia.com/mig-junk is not a MIG profile")
    assert "; hint: for example nvidia.com/mig-1g.10gb" in response["status"]["message"]
    assert "\n" not in response["status"]["message"]


def test_what_only_the_product_may_write_is_forbidden_to_others(program: AdmissionProgram, kube: MemoryKube) -> None:
    connection, old = connect(program, kube), {"spec": {"containers": [{"name": "main"}]}}
    new = {**old, "metadata": {"annotations": {names.PLAN: "{}"}}}
    update: Any = {"operation": "UPDATE", "oldObject": old}
    response = ask(connection, "/validate", new, **update)
    assert (response["allowed"], response["status"]["code"]) == (False, 403)
    planner = {"username": SETTINGS.trusted_users[0]}
    assert ask(connection, "/validate", new, **update, userInfo=planner)["allowed"] is True


def test_a_warning_reaches_the_user(program: AdmissionProgram, kube: MemoryKube) -> None:
    response = ask(connect(program, kube), "/mutate", example("volcano"))
    assert response["warnings"] == ["calabash: queue batch is not allowed in this namespace: the pod waits in default"]


def test_what_a_namespace_says_counts_also_in_the_moment_after_it_was_made(
    program: AdmissionProgram, kube: MemoryKube
) -> None:
    connection = connect(program, kube)
    assert "patch" not in ask(connection, "/mutate", example("hami"), namespace="dark")
    kube.faults.break_watches()
    kube.create(NAMESPACE, {"metadata": {"name": "darker", "labels": {names.ADMISSION: "off"}}})
    assert "patch" not in ask(connection, "/mutate", example("hami"), namespace="darker")
    assert "patch" in ask(connection, "/mutate", example("hami"), namespace="nobody-knows")


def test_an_api_server_that_is_down_stops_no_answer(program: AdmissionProgram, kube: MemoryKube) -> None:
    connection = connect(program, kube)
    kube.faults.down = True
    kube.faults.break_watches()
    assert "patch" in ask(connection, "/mutate", example("hami"))
    assert "patch" in ask(connection, "/mutate", example("hami"), namespace="nobody-knows")


def test_a_new_certificate_is_served_to_new_connections_and_old_ones_stay(
    program: AdmissionProgram, kube: MemoryKube
) -> None:
    before = connect(program, kube)
    assert ask(before, "/mutate", example("hami"))["allowed"]
    assert before.sock is not None
    first = before.sock.getpeercert(True)
    kube.delete(SECRET, SETTINGS.secret, SETTINGS.namespace)

    def second() -> bytes | None:
        try:
            after = connect(program, kube)
            after.connect()
        except ssl.SSLError:
            return first
        found: bytes | None = after.sock.getpeercert(True)
        return found

    eventually(lambda: second() != first)
    assert ask(connect(program, kube), "/mutate", example("hami"))["allowed"]
    assert ask(before, "/mutate", example("hami"))["allowed"]
    assert before.sock.getpeercert(True) == first


def test_certificates_of_another_issuer_are_read_again_when_they_change(kube: MemoryKube, tmp_path: Path) -> None:
    import datetime

    now = datetime.datetime.now(datetime.UTC)
    foreign = [CertificateKeeper(MemoryKube(), SETTINGS.certificates, NAMES).refresh(now) for _ in range(2)]

    def write(number: int) -> None:
        (tmp_path / "tls.crt").write_bytes(foreign[number].serving.certificate)
        (tmp_path / "tls.key").write_bytes(foreign[number].serving.key)

    write(0)
    settings = AdmissionSettings(certificate_dir=str(tmp_path))
    program = AdmissionProgram(kube, settings, listener=listen("127.0.0.1", 0), refresh_s=0.02)
    program.start()
    try:
        eventually(program.ready)

        def trusted(number: int) -> bool:
            context = ssl.create_default_context(cadata=foreign[number].bundle.decode())
            try:
                HTTPSConnection("127.0.0.1", program.server.port, context=context, timeout=60).connect()
            except ssl.SSLError:
                return False
            return True

        assert (trusted(0), trusted(1)) == (True, False)
        (tmp_path / "tls.crt").write_bytes(b"half written")
        write(1)
        eventually(lambda: trusted(1))
        assert kube.get(SECRET, SETTINGS.secret, SETTINGS.namespace) is None
    finally:
        program.stop()


def test_it_is_ready_when_it_has_a_certificate_and_knows_the_namespaces(kube: MemoryKube) -> None:
    kube.faults.down = True
    program = AdmissionProgram(
        kube, SETTINGS, listener=listen("127.0.0.1", 0), probes=listen("127.0.0.1", 0), names=NAMES, refresh_s=0.02
    )
    program.start()
    try:
        assert program.probes is not None
        probes = HTTPConnection("127.0.0.1", program.probes.port, timeout=60)

        def probed(path: str) -> int:
            probes.request("GET", path)
            reply = probes.getresponse()
            reply.read()
            return reply.status

        assert not program.ready()
        assert [probed(path) for path in ("/healthz", "/readyz", "/mutate")] == [200, 503, 404]
        kube.faults.down = False
        eventually(program.ready)
        assert [probed(path) for path in ("/healthz", "/readyz")] == [200, 200]
        connection = connect(program, kube)
        for method, path, status in (("GET", "/mutate", 405), ("POST", "/other", 404), ("POST", "/mutate", 400)):
            connection.request(method, path, body=b"[]")
            reply = connection.getresponse()
            reply.read()
            assert reply.status == status
    finally:
        program.stop()


def test_it_is_not_ready_while_it_does_not_know_whose_the_queues_are(kube: MemoryKube) -> None:
    program = AdmissionProgram(kube, SETTINGS, listener=listen("127.0.0.1", 0), names=NAMES, refresh_s=0.02)
    queues = program._queues
    known, queues.synced = threading.Event(), lambda timeout_s=None: known.is_set()  # type: ignore[method-assign]
    program.start()
    try:
        eventually(lambda: program._serving and program._namespaces.synced())
        assert not program.ready()
        known.set()
        assert program.ready()
    finally:
        program.stop()


def test_cluster_without_the_definition_of_queues_has_none(kube: MemoryKube) -> None:
    program = AdmissionProgram(kube, SETTINGS, listener=listen("127.0.0.1", 0), names=NAMES, refresh_s=0.02)
    program._queues.synced = lambda timeout_s=None: False  # type: ignore[method-assign]
    program.start()
    try:
        eventually(lambda: program._serving and program._namespaces.synced())
        program._queue_failures.mirror_failed(QUEUE, CalabashError("no answer", reason=Reason.API_DOWN))
        assert not program.ready()
        program._queue_failures.mirror_failed(QUEUE, CalabashError("no such kind", reason=Reason.NOT_FOUND))
        assert program.ready()
    finally:
        program.stop()


def test_it_is_not_alive_when_the_thread_of_its_certificates_has_ended(
    kube: MemoryKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    program = AdmissionProgram(
        kube, SETTINGS, listener=listen("127.0.0.1", 0), probes=listen("127.0.0.1", 0), names=NAMES, refresh_s=0.02
    )

    def broken() -> None:
        raise RuntimeError

    monkeypatch.setattr(program, "refresh", broken)
    program.start()
    try:
        eventually(lambda: not program.alive())
        assert program.probes is not None
        probes = HTTPConnection("127.0.0.1", program.probes.port, timeout=60)
        probes.request("GET", "/healthz")
        assert probes.getresponse().status == 503
    finally:
        program.stop()


def client_pair(authority: KeyPair, name: str, directory: Path) -> ssl.SSLContext:
    """Return the TLS context of a client with a certificate of this name that the authority signed."""
    path = directory / f"{name}.pem"
    path.write_bytes(client_certificate(authority.certificate, authority.key, name))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(path)
    return context


def test_only_clients_with_a_certificate_of_the_authority_and_an_accepted_name_are_answered(
    kube: MemoryKube, tmp_path: Path
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    authority, other = make_authority(now, 10), make_authority(now, 10)
    file = tmp_path / "ca.crt"
    settings = msgspec.structs.replace(SETTINGS, client_authority=str(file), client_names=("api-server",))
    program = AdmissionProgram(kube, settings, listener=listen("127.0.0.1", 0), names=NAMES, refresh_s=0.02)
    program.start()
    nobody = ssl.create_default_context()
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
    good = client_pair(authority, "api-server", tmp_path)
    strange = client_pair(authority, "pod", tmp_path)
    (tmp_path / "other").mkdir()
    forged = client_pair(other, "api-server", tmp_path / "other")

    def answered(context: ssl.SSLContext) -> bool:
        connection = HTTPSConnection("127.0.0.1", program.server.port, context=context, timeout=60)
        try:
            return "allowed" in ask(connection, "/mutate", example("hami"))
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    try:
        threading.Event().wait(0.2)
        assert not program.ready(), "without the authority it answers nobody"
        file.write_bytes(authority.certificate)
        eventually(program.ready)
        assert [answered(one) for one in (good, strange, forged, nobody)] == [True, False, False, False]
        file.write_bytes(other.certificate)
        eventually(lambda: answered(forged))
        assert not answered(good)
    finally:
        program.stop()


@given(
    st.binary(max_size=60)
    | st.sampled_from([b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}'])
)
def test_no_bytes_make_the_reader_of_reviews_fail_otherwise(body: bytes) -> None:
    with pytest.raises(CalabashError, match="not an AdmissionReview"):
        read_review(body)


def test_settings_come_from_a_file_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("second_scheduler: false\naliyun_memory_mib: 1\n")
    settings = read_settings(path)
    assert (settings.second_scheduler, settings.dialects.aliyun_memory_mib) == (False, 1)
    assert read_settings(None) == AdmissionSettings()
    path.write_text("prot: 1\n")
    with pytest.raises(CalabashError, match="prot"):
        read_settings(path)


def test_the_command_names_what_it_cannot_use(tmp_path: Path) -> None:
    result = CliRunner().invoke(admission, ["--kubeconfig", str(tmp_path / "none")])
    assert isinstance(result.exception, CalabashError)

"""Notifications of events to their subscribers, with real receivers: a web server and a mail server."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from tests.certificates import server_context
from tests.receiver import Receiver, receiving

from calabash.adapters.store import Store, open_store
from calabash.api.notifications import NotificationOrder
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.notices import Delivery, Notice, NoticeKind, Notification
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement
from calabash.model.tenancy import Member, Principal, Role, Tenant, TokenKind
from calabash.platform.access.permission import Permission
from calabash.platform.access.tokens import Tokens
from calabash.platform.notifications.collector import NoticeCollector, WaitingLong
from calabash.platform.notifications.delivery import PAUSE_S, PAUSE_S_MAX, DeliveryThreads
from calabash.platform.notifications.rules import NoticeSender, NotificationRules
from calabash.platform.notifications.settings import MailSettings, NotificationSettings
from calabash.platform.tenancy.store import TenancyStore
from calabash_testing.clock import VirtualClock

ROOT = Principal(user="root", roles=(Member(user="root", role=Role.ADMIN),))
TOM = Principal(user="tom", roles=(Member(user="tom", role=Role.TENANT_ADMIN, tenant="vision"),))
EVE = Principal(user="eve", roles=(Member(user="eve", role=Role.TENANT_ADMIN, tenant="speech"),))
MIA = Principal(user="mia", roles=(Member(user="mia", role=Role.MEMBER, tenant="vision"),))
HERE = NotificationSettings(allow=["127.0.0.0/8"])


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


class Notices:
    """Notification rules and deliveries of a pool; the test runs the steps of their threads itself."""

    def __init__(self, store: Store, settings: NotificationSettings = HERE) -> None:
        self.store, self.clock = store, VirtualClock()
        self.tenancy = TenancyStore(store.tenancy)
        if "vision" not in self.tenancy.people().tenants:
            for name in ("vision", "speech"):
                self.tenancy.put_tenant(Tenant(name=name))
        permission = Permission(0, everybody=True, people=self.tenancy.people)
        self.tokens = Tokens(store.tokens, self.clock)
        self.waiting: list[WaitingLong] = []
        self.sender = NoticeSender(settings, self.clock)
        self.sent: Callable[[], None] = lambda: None
        self.courier = DeliveryThreads(store.notices, self._send, self.clock)
        self.rules = NotificationRules(
            store.notices,
            settings,
            permission=permission,
            tenancy=self.tenancy,
            sender=self.sender,
            changed=self.courier.wake,
            clock=self.clock,
        )
        self.collector = NoticeCollector(
            self.rules,
            settings,
            store=store,
            tokens=self.tokens,
            people=self.tenancy.people,
            waiting=lambda: self.waiting,
            clock=self.clock,
        )

    def _send(self, to: Notification, delivery: Delivery) -> None:
        self.sender.send(to, delivery)
        self.sent()

    def post(self, number: int, tenant: str = "vision", kind: NoticeKind = NoticeKind.BUDGET) -> None:
        at = self.clock.now_s() + number / 1e3
        self.rules.post(
            [Notice(id=f"n{number}", kind=kind, at=at, tenant=tenant, about="x", message=f"notice {number}")]
        )

    def state(self, name: str = "hook") -> Any:
        return next(view for view in self.rules.visible_rules(ROOT) if view.name == name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = open_store(f"sqlite:///{tmp_path}/pool.db")
    yield made
    made.close()


@pytest.fixture
def notices(store: Store) -> Notices:
    return Notices(store)


def test_a_webhook_is_signed_so_that_its_receiver_can_verify_it(notices: Notices, receiver: Receiver) -> None:
    made = notices.rules.put(TOM, "hook", None, NotificationOrder(webhook=receiver.url))
    assert made.tenant == "vision"
    notices.post(1)
    assert notices.courier.deliver_next()
    ((headers, body),) = receiver.taken
    key = base64.b64decode(made.secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{mac}"
    assert int(headers["webhook-timestamp"]) == int(notices.clock.now_s())
    told = json.loads(body)
    assert (told["type"], told["data"]["tenant"], told["data"]["message"]) == ("budget", "vision", "notice 1")
    assert not notices.courier.deliver_next()
    assert notices.state().delivered == 1


def test_a_secret_is_shown_once_and_stands_in_no_text(notices: Notices, receiver: Receiver) -> None:
    secret = notices.rules.put(TOM, "hook", None, NotificationOrder(webhook=receiver.url)).secret
    assert notices.rules.put(TOM, "hook", None, NotificationOrder(webhook=receiver.url)).secret == ""
    assert secret not in repr(notices.store.notices.notifications())
    assert secret not in repr(notices.rules.visible_rules(ROOT))
    fresh = notices.rules.put(TOM, "hook", None, NotificationOrder(webhook=receiver.url, new_secret=True)).secret
    assert fresh not in {"", secret}


def test_a_receiver_that_fails_is_tried_again_under_the_same_id_and_ever_less_often(
    notices: Notices, receiver: Receiver
) -> None:
    notices.rules.put(TOM, "hook", None, NotificationOrder(webhook=receiver.url))
    receiver.statuses = [503, 429]
    notices.post(1)
    for tries in range(2):
        assert notices.courier.deliver_next()
        assert not notices.courier.deliver_next()
        notices.clock.advance(PAUSE_S * 2**tries)
    assert notices.courier.deliver_next()
    assert len({headers["webhook-id"] for headers, _ in receiver.taken}) == 1
    assert len({headers["webhook-timestamp"] for headers, _ in receiver.taken}) == 3
    assert (notices.state().delivered, notices.state().waiting) == (1, 0)
    receiver.statuses = [500] * 20
    notices.post(2)
    for _ in range(20):
        assert notices.courier.deliver_next()
        notices.clock.advance(PAUSE_S_MAX)
    assert "status 500" in notices.state().last_error


@pytest.mark.parametrize("status", [301, 302, 307, 400, 404, 410])
def test_a_redirect_is_not_followed_and_a_refusal_is_final(notices: Notices, receiver: Receiver, status: int) -> None:
    notices.rules.put(TOM, "hook", None, NotificationOrder(webhook=receiver.url))
    receiver.statuses = [status]
    notices.post(1)
    notices.post(2)
    assert notices.courier.deliver_next()
    assert notices.courier.deliver_next()
    state = notices.state()
    assert (state.failed, state.delivered, state.waiting) == (1, 1, 0)
    assert len(receiver.taken) == 2


def test_who_dies_between_sending_and_noting_it_sends_again_under_the_same_id(store: Store, receiver: Receiver) -> None:
    first = Notices(store)
    first.rules.put(TOM, "hook", None, NotificationOrder(webhook=receiver.url))
    first.post(1)
    ((to, _, delivery),) = store.notices.heads(now_s=first.clock.now_s() + 1)
    first.sender.send(to, delivery)  # and then it is killed
    second = Notices(store)
    assert second.courier.deliver_next()
    assert not second.courier.deliver_next()
    assert len(receiver.taken) == 2
    assert len({headers["webhook-id"] for headers, _ in receiver.taken}) == 1
    assert second.state().delivered == 1


def test_a_receiver_that_never_answers_holds_up_nobody_else(notices: Notices, receiver: Receiver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dead = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        notices.sender._webhooks._web._timeout_s = 0.2
        notices.rules.put(TOM, "dead", None, NotificationOrder(webhook=dead))
        notices.rules.put(TOM, "hook", None, NotificationOrder(webhook=receiver.url))
        for number in range(5):
            notices.post(number)
        while notices.courier.deliver_next():
            pass
    assert notices.state().delivered == 5
    assert (notices.state("dead").waiting, notices.state("dead").delivered) == (5, 0)
    assert "did not answer" in notices.state("dead").last_error
    notices.store.notices.trim(before_s=notices.clock.now_s() + 10)
    assert (notices.state("dead").waiting, notices.state("dead").dropped) == (0, 5)


def test_threads_carry_what_is_posted_and_end_when_told(notices: Notices, receiver: Receiver) -> None:
    notices.rules.put(TOM, "hook", None, NotificationOrder(webhook=receiver.url))
    delivered = threading.Event()
    notices.sent = delivered.set
    courier = notices.courier
    courier.start()
    notices.post(1)
    assert delivered.wait(60)
    courier.stop()
    assert not any(thread.is_alive() for thread in courier._threads)
    assert [json.loads(body)["data"]["message"] for _, body in receiver.taken] == ["notice 1"]


def test_each_tenant_sets_its_own_notifications_and_sees_no_others(notices: Notices, receiver: Receiver) -> None:
    notices.rules.put(TOM, "hook", None, NotificationOrder(webhook=receiver.url))
    notices.rules.put(ROOT, "hook", None, NotificationOrder(webhook=receiver.url))
    assert [(v.tenant, v.name) for v in notices.rules.visible_rules(ROOT)] == [("", "hook"), ("vision", "hook")]
    assert [v.tenant for v in notices.rules.visible_rules(TOM)] == ["vision"]
    assert notices.rules.visible_rules(EVE) == notices.rules.visible_rules(MIA) == []
    for who, tenant, reason in ((EVE, "vision", Reason.NOT_FOUND), (TOM, "", Reason.NOT_PERMITTED)):
        with pytest.raises(CalabashError) as failed:
            notices.rules.show(who, "hook", tenant)
        assert failed.value.reason is reason
    for call in (notices.rules.show, notices.rules.delete, notices.rules.test):
        with pytest.raises(CalabashError):
            call(MIA, "hook", "vision")
    with pytest.raises(CalabashError, match="no notification"):
        notices.rules.test(EVE, "hook", None)
    assert receiver.taken == []


def test_a_tenant_has_a_bounded_number_of_notifications(store: Store, receiver: Receiver) -> None:
    notices = Notices(store, NotificationSettings(allow=["127.0.0.1"], per_tenant=2))
    for name in ("a", "b", "a"):
        notices.rules.put(TOM, name, None, NotificationOrder(webhook=receiver.url))
    with pytest.raises(CalabashError) as failed:
        notices.rules.put(TOM, "c", None, NotificationOrder(webhook=receiver.url))
    assert failed.value.reason is Reason.USER_LIMIT


@pytest.mark.parametrize(
    "order",
    [
        NotificationOrder(),
        NotificationOrder(webhook="https://example.org/", email="a@example.org"),
        NotificationOrder(webhook="ftp://example.org/"),
        NotificationOrder(webhook="https://user:word@example.org/"),
        NotificationOrder(webhook="https://example.org/\r\nX: y"),
        NotificationOrder(webhook="https://127.0.0.1/"),
        NotificationOrder(webhook="https://[::1]/"),
        NotificationOrder(webhook="https://169.254.169.254/latest"),
        NotificationOrder(webhook="http://example.org/"),
        NotificationOrder(email="not an address"),
        NotificationOrder(email="a@example.org\r\nBcc: b@example.org"),
        NotificationOrder(email="Ann <a@example.org>"),
    ],
)
def test_what_cannot_be_meant_or_may_not_be_reached_is_refused(store: Store, order: NotificationOrder) -> None:
    with pytest.raises(CalabashError):
        Notices(store, NotificationSettings()).rules.put(TOM, "hook", None, order)


def test_a_test_says_what_came_of_it(notices: Notices, receiver: Receiver) -> None:
    notices.rules.put(TOM, "hook", None, NotificationOrder(webhook=receiver.url))
    assert notices.rules.test(TOM, "hook", None).passed
    receiver.statuses = [500]
    tested = notices.rules.test(TOM, "hook", None)
    assert (tested.passed, "status 500" in tested.why) == (False, True)
    assert json.loads(receiver.taken[0][1])["type"] == "test"


# -- what is told ----------------------------------------------------------------------------------------------


def test_what_happened_before_anybody_wanted_to_know_is_not_told(notices: Notices, receiver: Receiver) -> None:
    event = {"at": 1.0, "kind": "health", "reason": "lost", "device": "GPU-1", "message": "gone"}
    notices.store.add_events([event])
    notices.rules.put(ROOT, "hook", None, NotificationOrder(webhook=receiver.url))
    notices.collector.collect()
    assert notices.state().waiting == 0
    notices.store.add_events([event, {**event, "reason": "healthy"}])
    for _ in range(3):
        notices.collector.collect()
    assert notices.state().waiting == 1
    ((_, _, delivery),) = notices.store.notices.heads(now_s=notices.clock.now_s())
    assert (delivery.notice.kind, delivery.notice.about) == (NoticeKind.DEVICE_FAILED, "GPU-1")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("reclaim", "evicted"), ("drained", "evicted"), ("run_time", "evicted"), ("idle", "returned"),
     ("budget_spent", "returned"), ("released", ""), ("ended", "")],
)  # fmt: skip
def test_a_slice_that_was_taken_back_is_told_to_its_tenant_and_one_that_ended_is_not(
    notices: Notices, receiver: Receiver, reason: str, kind: str
) -> None:
    notices.rules.put(TOM, "hook", None, NotificationOrder(webhook=receiver.url))
    notices.rules.put(EVE, "other", None, NotificationOrder(webhook=receiver.url))
    record = AllocationRecord(
        id=AllocationId("a1"),
        state=AllocationState.GRANTED,
        request=GpuRequest(memory_mib=1, core_percent=1, tenant="vision"),
        placement=Placement(node=NodeName("here"), mode=ModeName("vgpu"), slices=()),
        user="ann",
        uid=1,
        client_pid=1,
        client_start_time=1,
        command=("x",),
        slot="",
        created_at=1.0,
        granted_at=1.0,
    )
    notices.store.grant(record)
    message = "its devices were needed for speech/secret"
    notices.store.add_events(
        [{"at": notices.clock.now_s(), "kind": "released", "reason": reason, "allocation": "a1", "message": message}]
    )
    notices.collector.collect()
    while notices.courier.deliver_next():
        pass
    told = [json.loads(body) for _, body in receiver.taken]
    assert [(t["type"], t["data"]["tenant"], t["data"]["about"]) for t in told] == (
        [(kind, "vision", "a1")] if kind else []
    )
    assert "secret" not in str(told)


def test_requests_that_wait_long_and_tokens_that_expire_are_told_once(notices: Notices, receiver: Receiver) -> None:
    notices.rules.put(TOM, "hook", None, NotificationOrder(webhook=receiver.url))
    notices.tenancy.put_member(Member(user="tom", role=Role.TENANT_ADMIN, tenant="vision"))
    notices.tokens.issue(user="tom", life_s=86_400.0)
    notices.tokens.issue(user="tom", life_s=30 * 86_400.0)
    notices.tokens.issue(user="tom", kind=TokenKind.SESSION)
    notices.waiting = [
        WaitingLong(id=AllocationId("a1"), tenant="vision", since_s=notices.clock.now_s() - 3600),
        WaitingLong(id=AllocationId("a2"), tenant="vision", since_s=notices.clock.now_s() - 60),
        WaitingLong(id=AllocationId("a3"), tenant="speech", since_s=notices.clock.now_s() - 3600),
    ]
    for _ in range(61):
        notices.collector.collect()
    told = []
    while notices.courier.deliver_next():
        told.append(json.loads(receiver.taken[-1][1]))
    assert sorted((t["type"], t["data"]["tenant"]) for t in told) == [
        ("token-expires", "vision"),
        ("waiting-long", "vision"),
    ]


# -- mail ------------------------------------------------------------------------------------------------------


PLAIN = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS:UserWarning")


class Mailbox:
    def __init__(self) -> None:
        self.mails: list[Any] = []
        self.refuse = ""

    async def handle_RCPT(  # noqa: N802 - aiosmtpd calls it so
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        if self.refuse:
            return self.refuse
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        self.mails.append(envelope)
        return "250 taken"


def _known(_server: Any, _session: Any, _envelope: Any, _mechanism: str, given: Any) -> AuthResult:
    return AuthResult(success=given == LoginPassword(b"calabash", b"word"))


@pytest.fixture
def mail(tmp_path: Path) -> Iterator[tuple[Mailbox, MailSettings]]:
    box = Mailbox()
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    controller = Controller(
        box, hostname="127.0.0.1", port=port, authenticator=_known, auth_required=True, auth_require_tls=False
    )
    controller.start()
    word = tmp_path / "word"
    word.touch(mode=0o600)
    word.write_text("word\n")
    yield (
        box,
        MailSettings(
            host="127.0.0.1",
            port=port,
            tls="none",
            sender="pool@example.org",
            user="calabash",
            password_file=str(word),
            domains=["example.org"],
        ),
    )
    controller.stop()


@PLAIN
def test_a_notice_is_mailed_and_known_again_by_its_message_id(store: Store, mail: tuple[Mailbox, MailSettings]) -> None:
    box, settings = mail
    notices = Notices(store, NotificationSettings(mail=settings))
    notices.rules.put(TOM, "team", None, NotificationOrder(email="team@example.org"))
    notices.post(1)
    assert notices.courier.deliver_next()
    ((_, state),) = store.notices.notifications()
    assert (state.delivered, state.last_error) == (1, "")
    (envelope,) = box.mails
    assert (envelope.mail_from, envelope.rcpt_tos) == ("pool@example.org", ["team@example.org"])
    text = envelope.content.decode()
    assert "Subject: [calabash] budget: x" in text
    assert "Message-ID: <msg_" in text
    assert "notice 1" in text
    assert "word" not in text
    with pytest.raises(CalabashError, match="may not go to"):
        notices.rules.put(TOM, "team", None, NotificationOrder(email="a@elsewhere.org"))


@PLAIN
def test_a_mail_server_that_is_busy_is_tried_again_and_one_that_refuses_is_not(
    store: Store, mail: tuple[Mailbox, MailSettings]
) -> None:
    box, settings = mail
    notices = Notices(store, NotificationSettings(mail=settings))
    notices.rules.put(TOM, "team", None, NotificationOrder(email="team@example.org"))
    notices.post(1)
    box.refuse = "451 later"
    assert notices.courier.deliver_next()
    assert (notices.state("team").waiting, notices.state("team").failed) == (1, 0)
    notices.clock.advance(PAUSE_S)
    box.refuse = "550 nobody"
    assert notices.courier.deliver_next()
    assert (notices.state("team").waiting, notices.state("team").failed) == (0, 1)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_mail_goes_over_tls_to_a_server_that_is_trusted_and_to_no_other(
    store: Store, tmp_path: Path, trusted: bool
) -> None:
    box = Mailbox()
    context, authority = server_context(tmp_path / "one")
    _, other = server_context(tmp_path / "two")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    controller = Controller(box, hostname="127.0.0.1", port=port, tls_context=context, require_starttls=True)
    controller.start()
    try:
        mail = MailSettings(
            host="127.0.0.1", port=port, sender="pool@example.org", authority=authority if trusted else other
        )
        notices = Notices(store, NotificationSettings(mail=mail))
        notices.rules.put(TOM, "team", None, NotificationOrder(email="team@example.org"))
        notices.post(1)
        assert notices.courier.deliver_next()
    finally:
        controller.stop()
    assert len(box.mails) == int(trusted)
    assert (notices.state("team").delivered, notices.state("team").waiting) == ((1, 0) if trusted else (0, 1))


def test_mail_without_tls_goes_to_this_machine_alone() -> None:
    with pytest.raises(CalabashError, match="without TLS"):
        NotificationSettings(mail=MailSettings(host="mail.example.org", tls="none", sender="a@example.org")).mails()

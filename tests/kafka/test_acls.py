"""What an application must be allowed to do on brokers that allow nothing by themselves."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from statestore.testing.local_kafka import LocalKafka
from tests.builders import eventually
from tests.kafka.run_rig import (
    PASSWORD,
    USER,
    App,
    Ended,
    assert_refused,
    counted,
    updates_in_order,
)

pytestmark = pytest.mark.kafka

CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


class Acl(NamedTuple):
    """One permission; of the topics `in` and `out`, and of what has the application's id."""

    kind: ResourceType
    name: str
    prefixed: bool
    operation: AclOperation

    def binding(self, app: App) -> AclBinding:
        pattern = ResourcePatternType.PREFIXED if self.prefixed else ResourcePatternType.LITERAL
        name = self.name.format(topics=app.name, id=application_id(app))
        allowed = AclPermissionType.ALLOW
        return AclBinding(self.kind, name, pattern, f"User:{USER}", "*", self.operation, allowed)


TOPIC, GROUP, TRANSACTIONAL_ID = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.TRANSACTIONAL_ID,
)
# The list of docs/runbook.md.
LEAST = {
    "read its inputs": Acl(TOPIC, "{topics}-in", False, AclOperation.READ),
    "write its outputs": Acl(TOPIC, "{topics}-out", False, AclOperation.WRITE),
    "create its internal topics": Acl(TOPIC, "{id}-", True, AclOperation.CREATE),
    "read its internal topics": Acl(TOPIC, "{id}-", True, AclOperation.READ),
    "write its internal topics": Acl(TOPIC, "{id}-", True, AclOperation.WRITE),
    "purge its repartition topics": Acl(TOPIC, "{id}-", True, AclOperation.DELETE),
    "commit to its group": Acl(GROUP, "{id}", False, AclOperation.READ),
    "write under its ids": Acl(TRANSACTIONAL_ID, "{id}-", True, AclOperation.WRITE),
}

# What it asks for besides, and can do without.
OPTIONAL = [
    Acl(TOPIC, "{topics}-in", False, AclOperation.DESCRIBE_CONFIGS),
    Acl(TOPIC, "{topics}-out", False, AclOperation.DESCRIBE_CONFIGS),
    Acl(TOPIC, "{id}-", True, AclOperation.DESCRIBE_CONFIGS),
    Acl(ResourceType.BROKER, "kafka-cluster", False, AclOperation.DESCRIBE_CONFIGS),
]


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka(users={USER: PASSWORD}, config=CONFIG) as broker:
        yield broker


@pytest.fixture
def app_settings(user_settings: Mapping[str, object]) -> Mapping[str, object]:
    return user_settings


def application_id(app: App) -> str:
    """Not what its topics' names begin with: so each permission is needed for one thing only."""
    return f"{app.name}.app"


def allow(app: App, acls: Iterable[Acl]) -> None:
    """Give the user these permissions; the broker learns of them after its controller said yes."""
    admin = AdminClient({"bootstrap.servers": app.kafka.bootstrap_servers})
    bindings = [acl.binding(app) for acl in acls]
    for pending in admin.create_acls(bindings).values():
        pending.result()
    for one in bindings:
        eventually(partial(holds, admin, one), f"{one} holds")


def holds(admin: AdminClient, one: AclBinding) -> bool:
    """Whether the broker knows of a permission."""
    where = (one.restype, one.name, one.resource_pattern_type, one.principal, one.host)
    asked = AclBindingFilter(*where, one.operation, one.permission_type)
    return bool(admin.describe_acls(asked).result())


def run(app: App) -> Ended:
    servers = f"--bootstrap-servers={app.kafka.sasl_servers}"
    return app.run(servers, f"--application-id={application_id(app)}")


def test_a_run_needs_no_more_than_the_runbook_lists(app: App) -> None:
    allow(app, LEAST.values())
    ended = run(app)
    assert ended.code == 0, ended.err
    assert updates_in_order(app.read()) == counted(range(20))
    app.produce(range(20, 40))
    ended = run(app)
    assert ended.code == 0, ended.err
    assert updates_in_order(app.read()) == counted(range(40))


def test_who_may_see_settings_is_warned_of_nothing(app: App) -> None:
    allow(app, [*LEAST.values(), *OPTIONAL])
    ended = run(app)
    assert ended.code == 0, ended.err
    assert "WARNING" not in ended.err


# One of each kind.
FIRST = ("read its inputs", "commit to its group", "write under its ids")


@pytest.mark.parametrize(
    "missing",
    [
        *FIRST,
        *(pytest.param(it, marks=pytest.mark.thorough) for it in LEAST if it not in FIRST),
    ],
)
def test_a_permission_that_is_missing_is_named_and_the_run_is_not_repeated(
    app: App, missing: str
) -> None:
    allow(app, [acl for doing, acl in LEAST.items() if doing != missing])
    ended = run(app)
    lacked = LEAST[missing].name.format(topics=app.name, id=application_id(app))
    assert_refused(ended, 2, "Misuse", lacked, "ACL", "What an application may do on the brokers")


def test_a_group_that_may_only_be_looked_at_is_named(app: App) -> None:
    describe = LEAST["commit to its group"]._replace(operation=AclOperation.DESCRIBE)
    allow(app, [*(acl for acl in LEAST.values() if acl.kind is not GROUP), describe])
    assert_refused(run(app), 2, "Misuse", f"group {application_id(app)}", "ACL")

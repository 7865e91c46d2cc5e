"""Storage URLs are shown without their passwords."""

from __future__ import annotations

import pytest

from suggest.errors import InvalidArgument
from suggest.storage.postgres import PostgresDatabase
from suggest.url_redaction import redacted_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql+psycopg://me:hush@host/db", "postgresql+psycopg://me:***@host/db"),
        ("postgresql+psycopg://me@host/db", "postgresql+psycopg://me@host/db"),
        ("postgresql+psycopg://:hush@host/db", "postgresql+psycopg://:***@host/db"),
        (
            "postgresql+psycopg://me:hu@sh/hu:sh@host:5432/db",
            "postgresql+psycopg://me:***@host:5432/db",
        ),
        ("postgresql+psycopg://me:hu?sh@host/db", "postgresql+psycopg://me:***@host/db"),
        ("postgresql+psycopg://me:hu#sh@host/db", "postgresql+psycopg://me:***@host/db"),
        ("postgresql+psycopg://host:5432/db", "postgresql+psycopg://host:5432/db"),
        (
            "postgresql+psycopg://me:hush@a,b/db?target_session_attrs=primary",
            "postgresql+psycopg://me:***@a,b/db?target_session_attrs=primary",
        ),
        (
            "postgresql+psycopg:///db?host=/s&password=hush&port=1",
            "postgresql+psycopg:///db?host=/s&password=***&port=1",
        ),
        (
            "postgresql+psycopg://h/db?sslkey=/k&sslpassword=hush",
            "postgresql+psycopg://h/db?sslkey=/k&sslpassword=***",
        ),
        (
            "postgresql+psycopg://h/db?SSLPassword=hush;x=1",
            "postgresql+psycopg://h/db?SSLPassword=***;x=1",
        ),
        ("postgresql+psycopg://h/db?%70assword=hush", "postgresql+psycopg://h/db?%70assword=***"),
        (
            "postgresql+psycopg://h/db?oauth_client_secret=hush",
            "postgresql+psycopg://h/db?oauth_client_secret=***",
        ),
        (
            "postgresql+psycopg://h/db?scram_client_key=hush",
            "postgresql+psycopg://h/db?scram_client_key=***",
        ),
        (
            "postgresql+psycopg://h/db?passfile=/p&application_name=a@b",
            "postgresql+psycopg://h/db?passfile=/p&application_name=a@b",
        ),
        ("mysql://me:hush@host/db", "mysql://me:***@host/db"),
        ("host=h user=me password='hu sh' dbname=d", "host=h user=me password=*** dbname=d"),
        ("sqlite:////home/a:b@c/studies.db", "sqlite:////home/a:b@c/studies.db"),
        ("localhost:8765", "localhost:8765"),
        ("unix:/run/tuner.sock", "unix:/run/tuner.sock"),
        ("", ""),
    ],
)
def test_a_storage_url_is_shown_without_its_secrets(url: str, expected: str) -> None:
    assert redacted_url(url) == expected


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://me:hu@sh@host/db", "postgresql+psycopg://me@host:hush/db"]
)
def test_a_password_that_breaks_its_url_is_not_quoted(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        PostgresDatabase(url)
    assert "sh" not in str(refused.value).replace("such", "")
    assert refused.value.__cause__ is None

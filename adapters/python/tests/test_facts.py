"""The package does what adapters/facts.json says, which all packages share."""

import json
from importlib.resources import files
from pathlib import Path

import psycopg
import pytest

from postgres_rate_limit import RateLimitExceeded, try_again
from postgres_rate_limit._failing import not_now
from postgres_rate_limit._stores import stored_key

REPOSITORY = next(up for up in Path(__file__).parents if (up / "META.json").is_file())
FACTS = json.loads((REPOSITORY / "adapters/facts.json").read_text())


def test_the_package_has_the_facts():
    assert json.loads(files("postgres_rate_limit").joinpath("facts.json").read_text("utf-8")) == FACTS


def test_the_errors_that_say_not_now():
    facts = FACTS["not now"]
    known = [error for error in vars(psycopg.errors).values() if isinstance(getattr(error, "sqlstate", None), str)]
    assert {*facts["sqlstates"], *facts["except"]} < {error.sqlstate for error in known}
    for error in known:
        state = error.sqlstate
        of_class = state.startswith(facts["class"]) and state not in facts["except"]
        assert not_now(error("late")) is (state in facts["sqlstates"] or of_class), state


@pytest.mark.parametrize("wait, words", FACTS["try again"])
def test_the_words_of_a_wait(wait, words):
    assert try_again(RateLimitExceeded("a", wait)) == words


@pytest.mark.parametrize("fact", FACTS["stored keys"])
def test_the_keys_that_become_a_hash(fact):
    key = fact["key"] * fact.get("times", 1)
    assert stored_key(key) == fact.get("stored", key)


def test_the_sql_of_a_cache_is_that_of_the_store_for_ruby():
    own = files("postgres_rate_limit").joinpath("counters.sql").read_text("utf-8")
    assert own == (REPOSITORY / "adapters/ruby/lib/counters.sql").read_text()

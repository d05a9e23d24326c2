"""The shop's limits, on the real database."""

import app as shop
import pytest
from sqlalchemy import text

ADA = {"email": "ada@example.com", "password": "correct horse"}
WRONG = {**ADA, "password": "battery staple"}


@pytest.fixture
async def ada(visit):
    """Ada's browser, logged in."""
    browser = visit()
    assert (await browser.post("/users", json=ADA)).status_code == 201
    assert (await browser.post("/login", json=ADA)).status_code == 200
    return browser


@pytest.fixture
async def admin(ada, db):
    await db.execute(text("UPDATE users SET admin = true"))
    return ada


async def statuses(browser, times, given=WRONG):
    return [(await browser.post("/login", json=given)).status_code for _ in range(times)]


async def test_an_account_has_five_attempts_from_wherever_they_come(ada, visit, ratelimit_async_clock):
    for n in range(5):
        assert await statuses(visit(f"198.51.100.{n}"), 1) == [401]
    denied = await ada.post("/login", json=ADA)
    assert (denied.status_code, denied.headers["Retry-After"]) == (429, "180")
    assert denied.text == "Too many requests: try again in 3 minutes\n"
    assert '"loginByAccount";r=0' in denied.headers["RateLimit"] and '"loginByAddress"' in denied.headers["RateLimit"]
    assert await statuses(ada, 1, {**ADA, "email": " ADA@example.com"}) == [429]
    await ratelimit_async_clock.advance(minutes=3)
    assert await statuses(ada, 1, ADA) == [200]


async def test_a_login_clears_the_account_and_returns_its_own_attempt_to_the_address(ada, db):
    await statuses(ada, 4)
    assert await statuses(ada, 6, ADA) == [200] * 6
    left = "SELECT name, remaining FROM rl_status() WHERE name LIKE 'loginBy%' ORDER BY name"
    assert (await db.execute(text(left))).all() == [("loginByAccount", 5), ("loginByAddress", 46)]


async def test_an_address_that_tries_many_accounts(visit):
    async def guess(browser, n):
        return (await browser.post("/login", json={**WRONG, "email": f"user-{n}@example.com"})).status_code

    guesser = visit("2001:db8::1")
    assert {await guess(guesser, n) for n in range(50)} == {401}
    assert await guess(guesser, 50) == 429
    assert await guess(visit("2001:db8::2"), 51) == 429  # the same network
    assert await guess(visit("2001:db8:0:1::1"), 52) == 401


async def test_only_a_proxy_is_believed(visit):
    for n in range(5):
        invents = visit(f"198.51.100.{n}", by="203.0.113.9")
        assert (await invents.post("/users", json={**ADA, "email": f"{n}@example.com"})).status_code == 201
    assert (await visit("198.51.100.5", by="203.0.113.9").post("/users", json=ADA)).status_code == 429
    # What stands left of the proxy's own entry is invented.
    assert (await visit("198.51.100.6, 203.0.113.9").post("/users", json=ADA)).status_code == 429
    assert (await visit("198.51.100.6").post("/users", json=ADA)).status_code == 201


async def test_five_sign_ups_a_day_and_what_fails_costs_none(ada, ratelimit_async_clock):
    assert [(await ada.post("/users", json=ADA)).status_code for _ in range(6)] == [409] * 6
    made = [(await ada.post("/users", json={**ADA, "email": f"{n}@example.com"})).status_code for n in range(5)]
    assert made == [201] * 4 + [429]
    await ratelimit_async_clock.advance(hours=12)  # the next day of UTC
    assert (await ada.post("/users", json={**ADA, "email": "4@example.com"})).status_code == 201


async def test_plans(ada, visit):
    assert (await visit().get("/api/prices")).status_code == 401
    for left in reversed(range(10)):
        answer = await ada.get("/api/prices")
        assert answer.status_code == 200 and f'"api";r={left}' in answer.headers["RateLimit"]
    denied = await ada.get("/api/prices")
    assert (denied.status_code, denied.headers["Retry-After"]) == (429, "6")
    assert (await ada.put("/plan/gold")).status_code == 422
    assert (await ada.put("/plan/pro")).status_code == 204
    assert (await ada.get("/api/prices")).headers["Retry-After"] == "1"
    assert (await ada.put("/plan/free")).status_code == 204


async def test_an_administrator_sees_blocks_and_unblocks(admin, visit):
    at = {"account": ADA["email"]}
    await statuses(visit(), 5)
    await admin.get("/api/prices")
    page = (await admin.get("/admin", params=at)).text
    assert "<tr><td>api<td>9<td><td><td>" in page
    assert "<tr><td>loginByAccount<td>0<td>tokens<td>2027-01-01 12:03:00+00:00<td>" in page
    assert (await admin.post("/admin/unblock", params=at)).status_code == 303
    assert await statuses(visit(), 1, ADA) == [200]
    await admin.post("/admin/block", params=at)
    page = (await admin.get("/admin", params=at)).text
    assert "<td>block<td>2027-01-02 12:00:00+00:00<td>by hand" in page
    assert await statuses(visit(), 1, ADA) == [429]
    await admin.post("/admin/unblock", params=at)
    assert await statuses(visit(), 1, ADA) == [200]


async def test_an_administrator_erases_an_account(admin, visit, db):
    bob = {**ADA, "email": "bob@example.com"}
    browser = visit()
    await browser.post("/users", json=bob)
    assert await statuses(browser, 1, bob) == [200]
    await browser.get("/api/prices")
    await statuses(browser, 2, {**WRONG, "email": bob["email"]})
    keys = text("SELECT count(*) FROM rl_status(key => 'bob@example.com')")
    assert await db.scalar(keys) == 2
    assert (await admin.post("/admin/erase", params={"account": bob["email"]})).status_code == 303
    assert await db.scalar(keys) == 0
    assert (await browser.get("/api/prices")).status_code == 401
    assert (await admin.get("/api/prices")).status_code == 200


async def test_the_page_of_an_account_is_escaped(admin):
    page = await admin.get("/admin", params={"account": "<b>&x=1"})
    assert page.status_code == 200 and "<b>" not in page.text and "account=%3Cb%3E%26x%3D1" in page.text


async def test_only_an_administrator_may(ada):
    for method, path in [("GET", "")] + [("POST", f"/{action}") for action in ("block", "unblock", "erase")]:
        assert (await ada.request(method, f"/admin{path}", params={"account": ADA["email"]})).status_code == 403


async def test_rows_of_full_keys_are_pruned(visit, ratelimit_async_clock, ratelimit_async_connection):
    await statuses(visit(), 1)
    await ratelimit_async_clock.advance(days=2)
    assert await shop.limiter.prune(db=ratelimit_async_connection) == 2
    assert await shop.limiter.prune(db=ratelimit_async_connection) == 0

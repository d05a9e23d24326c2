"""Draws docs/pictures/*.svg from what a running server with the extension answers.

Owns what each picture shows: every mark, level, turn and count in them is an answer of rl_replay, or
in the one about shards a row of rateLimits. With --check it writes nothing, and names the pictures that
differ from those in docs/. Run by scripts/pictures.
"""

import argparse
from pathlib import Path

from chart import LEFT, RIGHT, Chart
from server import Request, Server
from svg import MARGIN, Picture

PICTURES = Path(__file__).parents[2] / "docs/pictures"
BEGIN = "2027-01-01 12:00:00+00"

# The requests, the same in all pictures but three: a calm minute, a burst, a lull, a burst around the
# turn at 12:03, and calm again. (from second, to second, every so many seconds, so many at once)
LOG = [(5, 55, 10, 1), (80, 92, 4, 4), (168, 176, 4, 4), (182, 190, 4, 4), (205, 245, 10, 1)]
SECONDS = 262
FIRST_BURST, SECOND_BURST = (80, 92), (168, 190)

TOKEN_BUCKET = "rl_token_bucket(10, '1 minute')"
FIXED_WINDOW = f"rl_fixed_window(10, '1 minute', start => '{BEGIN}')"
SLIDING_WINDOW = "rl_sliding_window(10, '1 minute')"
SLIDING_LOG = "rl_sliding_log(10, '1 minute')"
LEGEND = [("passed", "request allowed"), ("denied", "denied")]


def log():
    times = [(at, count) for first, last, every, count in LOG for at in range(first, last + 1, every)]
    return [Request(at) for at, count in times for _ in range(count)]


def minutes(turns=()):
    """The labels of the time axis: (seconds, line, …)."""
    return [
        (at, f"12:{at // 60:02}", *(["window turns"] if at in turns else [])) for at in range(0, SECONDS, 60)
    ]


def of(answers):
    """How many of the requests pass."""
    return f"{sum(answer.ok for answer in answers)} of {len(answers)}"


def during(replay, span):
    return [answer for answer in replay.answers if span[0] <= answer.at <= span[1]]


def bracket(chart, span, words):
    """Says something of the requests of a span of time."""
    x1, x2, y = chart.x(span[0]) - 4, chart.x(span[1]) + 4, 76
    chart.picture.line("lead", (x1, y + 4), (x1, y), (x2, y), (x2, y + 4))
    chart.picture.text((x1 + x2) / 2, y - 6, words, "note", "middle")


def one_kind(server, title, description, config, turns=False, least=0, legend=LEGEND):
    """The frame of a picture of one limit and the log; also returns what it takes to add to it."""
    replay = server.replay(config, log(), BEGIN, SECONDS)
    top, bottom = 132, 232 - 10 * least
    picture = Picture(bottom + (54 if turns else 42), title, description)
    picture.text(MARGIN, 34, title, "title", note="10 a minute")
    picture.legend(34, *legend)
    chart = Chart(picture, SECONDS)
    if turns:
        chart.turns(replay.turns, 86, bottom)
    chart.requests(replay.answers, 112)
    y = chart.level(replay.level, top, bottom, 10, least)
    chart.times(bottom, minutes(replay.turns if turns else ()))
    return picture, chart, replay, y


def token_bucket(server):
    picture, chart, replay, y = one_kind(
        server, "Token bucket",
        "Requests over four minutes, and the tokens left. Tokens flow in steadily, one every six seconds, until "
        "there are ten. A burst passes until the bucket is empty; what comes then is denied.",
        TOKEN_BUCKET,
    )
    for burst in FIRST_BURST, SECOND_BURST:
        bracket(chart, burst, f"{of(during(replay, burst))} pass")
    picture.text(chart.x(98), y(8), "empty: denied", "note")
    picture.line("lead", (chart.x(98) + 8, y(7.4)), (chart.x(92.7), y(0.9)))
    picture.lines(chart.x(119), y(1.9), ["one flows in", "every 6 seconds"])
    picture.text(RIGHT, y(8.6), "capacity: the largest burst", "note", "end")
    return picture


def fixed_window(server):
    picture, chart, replay, y = one_kind(
        server, "Fixed window",
        "The same requests. All ten tokens come back at once when the window turns, so that ten requests pass "
        "just before a turn and ten just after it.",
        FIXED_WINDOW, turns=True,
    )
    passing = [answer.at for answer in during(replay, SECOND_BURST) if answer.ok]
    bracket(chart, FIRST_BURST, f"{of(during(replay, FIRST_BURST))} pass")
    bracket(chart, SECOND_BURST, f"{len(passing)} pass in {passing[-1] - passing[0]} seconds")
    picture.lines(chart.x(144), y(5.4), ["all 10 come back", "at once"], anchor="middle")
    picture.lines(chart.x(216), y(5.4), ["none until", "the window turns"], anchor="middle")
    return picture


def sliding_window(server):
    picture, chart, replay, y = one_kind(
        server, "Sliding window",
        "The same requests. What passed in the window before still counts, by the share of it that lies in the "
        "last minute: tokens come back little by little, and no turn lets a second burst pass.",
        SLIDING_WINDOW, turns=True,
    )
    for burst in FIRST_BURST, SECOND_BURST:
        bracket(chart, burst, f"{of(during(replay, burst))} pass")
    picture.lines(chart.x(166), y(1.9), ["old requests", "count less and less"], anchor="end")
    return picture


def sliding_log(server):
    picture, chart, replay, y = one_kind(
        server, "Sliding log",
        "The same requests. Each token comes back exactly a minute after it was taken, so that in no minute more "
        "than ten requests pass.",
        SLIDING_LOG,
    )
    for burst in FIRST_BURST, SECOND_BURST:
        bracket(chart, burst, f"{of(during(replay, burst))} pass")
        taken = next(answer.at for answer in during(replay, burst) if answer.remaining < 5)
        picture.arrow(chart.x(taken), y(5), chart.x(taken + 60) - 1)
        picture.text(chart.x(taken + 30), y(5.7), "back a minute later", "note", "middle")
    return picture


def four_kinds(server):
    kinds = [
        ("Token bucket", "tokens flow in steadily", TOKEN_BUCKET, False),
        ("Fixed window", "all come back when the window turns", FIXED_WINDOW, True),
        ("Sliding window", "what the last window took counts less and less", SLIDING_WINDOW, True),
        ("Sliding log", "each comes back a minute after it was taken", SLIDING_LOG, False),
    ]
    height, first = 110, 106
    picture = Picture(
        first + 4 * height + 2, "Four kinds of limits, 10 a minute each, and the same requests",
        "Four charts above each other: which of the same requests each kind lets pass, and the tokens left. "
        "Around a turn the fixed window lets two bursts pass, the others one.",
    )
    picture.text(MARGIN, 34, "Four kinds of limits, the same requests", "title", note="10 a minute")
    picture.legend(62, *LEGEND, ("level", "tokens left"), ("turn", "window turns"), x=MARGIN)
    chart = Chart(picture, SECONDS)
    for n, (name, note, config, turns) in enumerate(kinds):
        replay = server.replay(config, log(), BEGIN, SECONDS)
        y = first + n * height
        picture.text(MARGIN, y - 10, name, "strong", note=note)
        words = f"{of(replay.answers)} pass; {of(during(replay, SECOND_BURST))} around 12:03"
        picture.text(RIGHT, y - 10, words, "note", "end")
        if turns:
            chart.turns(replay.turns, y, y + 74)
        chart.requests(replay.answers, y + 28, 3.1, 7)
        chart.level(replay.level, y + 38, y + 74, 10)
    chart.times(first + 3 * height + 74, minutes())
    return picture


def overage(server):
    picture, chart, replay, y = one_kind(
        server, "Soft quota",
        "The same requests, of which none is denied. Beyond ten in a window they pass too, marked as over; the "
        "level goes below zero, and when the window turns all ten are back and the debt is gone.",
        FIXED_WINDOW + """ || '{"overage": true}'""", turns=True, least=-8,
        legend=[("passed", "request allowed"), ("over", "allowed, over the quota")],
    )
    picture.line("axis", (LEFT, y(-8)), (RIGHT, y(-8)))
    for burst in FIRST_BURST, SECOND_BURST:
        answers = during(replay, burst)
        over = sum(answer.remaining < 0 for answer in answers)
        bracket(chart, burst, f"{of(answers)} pass, {over} are over")
    for turn in replay.turns:
        debt = min(tokens for at, tokens in replay.level if turn - 60 <= at < turn)
        if debt < -2:
            picture.text(chart.x(turn) - 6, y(debt) + 15, f"{-debt:g} over", "note", "end")
    picture.lines(chart.x(144), y(5.4), ["all 10 are back,", "the debt is gone"], anchor="middle")
    return picture


def reserve(server):
    """Five calls of 15 tokens each, one of which is denied and tried again."""
    seconds, count, most, debt = 92, 15, 20, 30
    config = f"rl_token_bucket(60, '1 minute', capacity => {most}, max_reserved => {debt})"
    calls = [Request(at, count, True) for at in (5, 10, 15, 20, 25, 30)]
    replay = server.replay(config, calls, BEGIN, seconds)
    rows, row = 78, 24
    top = rows + 5 * row + 6
    bottom = top + 130
    picture = Picture(
        bottom + 42, "Reserved work",
        "Five jobs reserve fifteen tokens each within half a minute. The level goes below zero, and each call "
        "learns when to do its work: every fifteen seconds one, as tokens come in. A call that would bring the "
        "debt above its bound is denied.",
    )
    picture.text(MARGIN, 34, "Reserved work", "title", note=f"a token a second; each job takes {count}")
    picture.legend(34, ("passed", "call allowed"), ("denied", "denied"))
    chart = Chart(picture, seconds)
    job = 0
    for answer in replay.answers:
        x, y = chart.x(answer.at), rows + job * row
        picture.mark("passed" if answer.ok else "denied", x, y, 4)
        if not answer.ok:
            picture.text(x - 9, y + 4, f"denied: debt above {debt}", "note", "end")
            continue
        if answer.retry_at:
            due = chart.x(answer.retry_at)
            picture.arrow(x + 6, y, due - 1)
        else:
            due = x + 8
        picture.rect("box", due, y - 9, 50, 18, ' rx="2"')
        picture.text(due + 25, y + 4, "work", "note", "middle")
        picture.text(LEFT - 8, y + 4, f"job {job + 1}", "note", "end")
        job += 1
    y = chart.level(replay.level, top, bottom, most, -debt)
    picture.line("most", (LEFT, y(-debt)), (RIGHT, y(-debt)))
    picture.text(LEFT - 8, y(-debt) + 4, f"−{debt}", "note", "end")
    picture.text(RIGHT, y(-debt) - 6, f"maxReserved: {debt}", "note", "end")
    picture.text(RIGHT, top - 6, f"capacity: {most}", "note", "end")
    paid = chart.x(answer.retry_at)
    picture.line("turn", (paid, rows + 4 * row + 9), (paid, y(0)))
    picture.text(paid + 6, y(0) + 16, "debt paid back", "note")
    chart.times(bottom, [(at, f"{at} s") for at in range(0, seconds, 15)])
    return picture


def calendar(server):
    """A week of local days, of which one has 23 hours."""
    zone, begin, hour, days = "Europe/Berlin", "2027-03-25", 3600, 7
    at_once = [1, 2, 1, 1, 2, 1, 1]
    times = server.main.rows(
        f"""SELECT day, extract(epoch FROM local AT TIME ZONE zone - start)::int AS at
        FROM (SELECT '{zone}' AS zone, timestamp '{begin}' AT TIME ZONE '{zone}' AS start) AS _,
            generate_series(0, {days - 1}) AS day,
            LATERAL (SELECT date '{begin}' + day + hour * interval '1 hour' FROM generate_series(1, 22, 3) AS hour
                WHERE hour <> 4) AS locals (local)
        ORDER BY at"""
    )
    requests = [Request(row["at"], 1) for row in times for _ in range(at_once[row["day"]])]
    start, seconds = f"{begin} 00:00 {zone}", (days * 24 + 6) * hour
    config = f"rl_fixed_window(10, '1 day', timezone => '{zone}')"
    replay = server.replay(config, requests, start, seconds, hour / 4)
    boundaries = [0, *replay.turns]
    names = server.main.rows(
        f"""SELECT to_char(at AT TIME ZONE '{zone}', 'Dy FMDD Mon') AS day, to_char(at, 'HH24:MI') AS utc
        FROM unnest(ARRAY{boundaries}::float8[]) AS seconds,
            LATERAL (SELECT timestamptz '{start}' + seconds * interval '1 second') AS _ (at)
        ORDER BY at"""
    )
    top, bottom = 142, 222
    picture = Picture(
        bottom + 76, "Calendar window",
        "A week of a quota of ten a day in Europe/Berlin. The window turns at each local midnight, also when "
        "summer time begins: that Sunday has 23 hours, and from then on midnight is at 22:00 UTC.",
    )
    picture.text(MARGIN, 34, "Calendar window", "title", note=f"10 a day in {zone}")
    picture.legend(34, *LEGEND)
    chart = Chart(picture, seconds)
    for day, (first, last) in enumerate(zip(boundaries, boundaries[1:])):
        hours = (last - first) / hour
        x1, x2 = chart.x(first), chart.x(last)
        picture.rect("box" if hours == 24 else "short", x1, 58, x2 - x1, 38)
        picture.text((x1 + x2) / 2, 73, names[day]["day"], "note", "middle")
        picture.text((x1 + x2) / 2, 89, f"{hours:g} hours", "note" if hours == 24 else "strong", "middle")
    chart.turns(replay.turns, 96, bottom)
    chart.requests(replay.answers, 124, 3)
    chart.level(replay.level, top, bottom, 10)
    picture.line("axis", (LEFT, bottom), (RIGHT, bottom))
    chart.times(bottom, [(at, name["utc"], "UTC") for at, name in zip(boundaries, names)])
    changed = next(n for n in range(1, len(names)) if names[n]["utc"] != names[n - 1]["utc"])
    words = "summer time: from here midnight is an hour earlier in UTC"
    picture.text(chart.x(boundaries[changed]), bottom + 54, words, "note", "middle")
    return picture


def shards(server):
    """The rows of a limit, in the order in which four transactions that are open at once took from them."""
    limit, rows, capacity = "everybody", 4, 80
    sessions = [server.session() for _ in range(rows)]
    main = server.main
    for session in [main, *sessions]:
        session.run(f"SET ratelimit.clock = '{BEGIN}'")

    def take(session, count):
        return session.rows(f"SELECT ok, retry_at FROM rl_limit('{limit}', count => {count})")[0]

    def level(order, at=BEGIN):
        share = f"rl_token_bucket({capacity / rows}, '1 minute')"
        held = main.rows(
            f"""SELECT shard, (rl_calculate({share}, state, '{at}', 0)).remaining
            FROM rateLimits, jsonb_build_object('value', value, 'ts', extract(epoch FROM ts) * 1000) AS state
            WHERE name = '{limit}' AND shard > 0"""
        )
        by_row = {row["shard"]: row["remaining"] for row in held}
        return [by_row[shard] for shard in order or sorted(by_row)]

    main.run(f"SELECT rl_define('{limit}', rl_token_bucket({capacity}, '1 minute', shards => {rows}))")
    # The rows are there with the first call, which is given back.
    take(main, 1)
    main.run(f"SELECT rl_credit('{limit}', '', 1)")
    full = level(None)
    stages = [("at first", ["each row holds", "a quarter"], full, full)]

    order, counts = [], [4, 8, 12, 16]
    for session, count in zip(sessions, counts):
        session.run("BEGIN")
        before = {row["shard"]: row["value"] for row in session.rows("SELECT shard, value FROM rateLimits")}
        take(session, count)
        after = session.rows("SELECT shard, value FROM rateLimits")
        order += [row["shard"] for row in after if row["value"] != before[row["shard"]]]
    for session in sessions:
        session.run("COMMIT")
    halved = level(order)
    stages.append(("four at once", ["each in a row of", "its own: none waits"], full, halved))

    take(main, 24)
    spread = level(order)
    stages.append(("a call for 24", ["more than one has:", "from several"], halved, spread))

    denied = take(main, 20)
    stages.append(("a call for 20", ["denied: too few", "in all rows"], spread, level(order)))

    at = denied["retry_at"]
    refilled = level(order, at)
    main.run(f"SET ratelimit.clock = '{at}'")
    take(main, 20)
    wait = main.rows(f"SELECT extract(epoch FROM timestamptz '{at}' - '{BEGIN}')::int AS seconds")[0]["seconds"]
    stages.append((f"{wait} seconds later", ["at its retry_at:", "it passes"], refilled, level(order, at)))

    picture = Picture(
        276, "Shards",
        "A limit of eighty tokens spread over four rows. Four transactions at once take from a row each. A call "
        "for more than a row holds takes from several, and one for more than all hold is denied.",
    )
    picture.text(MARGIN, 34, "Shards", "title", note=f"{capacity} a minute, in {rows} rows")
    picture.legend(34, ("level", "tokens left"), ("debt", "taken"))
    top, bottom, pitch, bar, gap = 124, 214, 138, 25, 4
    y = lambda tokens: bottom - (bottom - top) * tokens * rows / capacity
    for n, (name, words, before, after) in enumerate(stages):
        left = MARGIN + n * pitch
        picture.text(left, 66, name, "strong")
        picture.lines(left, 83, words)
        for row, (old, new) in enumerate(zip(before, after, strict=True)):
            x = left + row * (bar + gap)
            picture.rect("box", x, top, bar, bottom - top)
            if new > 0:
                picture.rect("area", x, y(new), bar, bottom - y(new))
            if new < old:
                picture.rect("debt", x, y(old), bar, y(new) - y(old))
                picture.text(x + bar / 2, top - 6, f"−{old - new:g}", "note", "middle")
            picture.line("level", (x, y(new)), (x + bar, y(new)))
            picture.text(x + bar / 2, bottom + 16, f"{new:g}", "note", "middle")
        middle = left + (rows * (bar + gap) - gap) / 2
        picture.text(middle, bottom + 36, f"{sum(after):g} left", "strong", "middle")
    return picture


DRAWINGS = {
    "four-kinds": four_kinds,
    "token-bucket": token_bucket,
    "fixed-window": fixed_window,
    "sliding-window": sliding_window,
    "sliding-log": sliding_log,
    "overage": overage,
    "reserve": reserve,
    "calendar": calendar,
    "shards": shards,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--socket", required=True, help="the folder of the server's unix socket")
    parser.add_argument("--check", action="store_true", help="compare with docs/pictures, and write nothing there")
    options = parser.parse_args()
    with Server(options.socket) as server:
        drawn = {f"{name}.svg": str(draw(server)) for name, draw in DRAWINGS.items()}
    there = {path.name: path.read_text() for path in PICTURES.glob("*.svg")}
    if not options.check:
        for name, svg in drawn.items():
            (PICTURES / name).write_text(svg)
        return
    differing = [name for name in sorted(drawn | there) if drawn.get(name) != there.get(name)]
    for name in sorted(drawn | there):
        print(f"not ok - {name} is not as it is drawn now: make pictures" if name in differing else f"ok - {name}")
    raise SystemExit(1 if differing else 0)


if __name__ == "__main__":
    main()

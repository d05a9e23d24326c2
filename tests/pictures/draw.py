"""Draws docs/pictures/*.svg from what a running server with the extension answers.

Owns what each picture shows: every mark, level, turn and count in them is an answer of rl_replay, or
in the one about shards a row of rateLimits. With --check it writes nothing, and names the pictures that
differ from those in docs/. Run by scripts/pictures.
"""

import argparse
from pathlib import Path

from look import ARROW, C, MARGIN, MARKS, TAKEN, TURN, WIDTH, Picture
from server import Request, Server

PICTURES = Path(__file__).parents[2] / "docs/pictures"
BEGIN = "2027-01-01 12:00:00+00"
LEFT, RIGHT = 64, WIDTH - MARGIN

# The requests, the same in all pictures but three: a calm minute, a burst, a lull, a burst around the
# window's end at 12:03, and calm again. (from second, to second, seconds between, requests at once)
LOG = [(5, 55, 10, 1), (80, 92, 4, 4), (168, 176, 4, 4), (182, 190, 4, 4), (205, 245, 10, 1)]
REQUESTS = [Request(at) for first, last, every, n in LOG for at in range(first, last + 1, every) for _ in range(n)]
SECONDS = 262
FIRST_BURST, SECOND_BURST = (80, 92), (168, 190)
LEGEND = {"passed": "request allowed", "denied": "denied"}

TOKEN_BUCKET = "rl_token_bucket(10, '1 minute')"
FIXED_WINDOW = f"rl_fixed_window(10, '1 minute', start => '{BEGIN}')"
SLIDING_WINDOW = "rl_sliding_window(10, '1 minute')"
SLIDING_LOG = "rl_sliding_log(10, '1 minute')"


def of(answers):
    """How many of the requests pass."""
    return f"{sum(answer.ok for answer in answers)} of {len(answers)}"


def during(replay, span):
    return [answer for answer in replay.answers if span[0] <= answer.at <= span[1]]


def kind_of(answer):
    return "denied" if not answer.ok else "over" if answer.remaining < 0 else "passed"


def draw_requests(picture, level, answers, bottom, pitch=8, **marks):
    """Marks above the level, those of one time above each other; returns their axes, where y counts them."""
    chart = picture.chart(LEFT, bottom - 3.5 * pitch, RIGHT, bottom + pitch / 2, sharex=level, ylim=(-0.5, 3.5))
    chart.axis("off")
    for kind, mark in MARKS.items():
        shown = [(a.at, sum(b.at == a.at for b in answers[:n])) for n, a in enumerate(answers) if kind_of(a) == kind]
        if shown:
            chart.plot(*zip(*shown), **mark | marks, clip_on=False)
    return chart


def draw_level(picture, replay, seconds, top, bottom, most, least=0, turns=0):
    """The tokens left, as a line over an area; what is below 0 is hatched. Ends of windows are drawn up to `turns`
    pixels above it."""
    chart = picture.chart(LEFT, top, RIGHT, bottom, xlim=(0, seconds), ylim=(least, most), xticks=[], yticks=[0, most])
    times, tokens = zip(*replay.level)
    chart.fill_between(times, tokens, where=[value >= 0 for value in tokens], interpolate=True, fc=C.area, lw=0)
    if least < 0:
        chart.fill_between(times, tokens, where=[value <= 0 for value in tokens], interpolate=True, **TAKEN)
    chart.plot(times, tokens, color=C.level, lw=1.8, clip_on=False)
    chart.axhline(most, color=C.note, lw=1, ls=(0, (7, 4)), clip_on=False)
    chart.axhline(0, color=C.axis, lw=1)
    for turn in replay.turns if turns else []:
        chart.axvline(turn, 0, 1 + turns / (bottom - top), **TURN, clip_on=False)
    if (bottom - top) * most / (most - least) >= 50:
        chart.text(-8 / (RIGHT - LEFT) * seconds, most / 2, "tokens\nleft", ha="right", va="center")
    return chart


def minutes(chart, turns=()):
    at = range(0, SECONDS, 60)
    chart.set_xticks(at, [f"12:{t // 60:02}" + "\nnew window" * (t in turns) for t in at])


def one_kind(server, title, config, turns=False, least=0, legend=LEGEND):
    """The picture of one limit and the log, its axes, what was answered, and what says something of a burst."""
    replay = server.replay(config, REQUESTS, BEGIN, SECONDS)
    top, bottom = 132, 232 - 10 * least
    picture = Picture(bottom + (54 if turns else 42), title, "10 a minute")
    picture.legend_of(legend)
    chart = draw_level(picture, replay, SECONDS, top, bottom, 10, least, 46 * turns)
    requests = draw_requests(picture, chart, replay.answers, 112)
    minutes(chart, replay.turns if turns else ())

    def tell(span, words):
        x1, x2 = span[0] - 2, span[1] + 2
        requests.plot([x1, x1, x2, x2], [4, 4.5, 4.5, 4], color=C.note, lw=1, clip_on=False)
        requests.text((x1 + x2) / 2, 5, words, ha="center")

    return picture, chart, replay, tell


def token_bucket(server):
    picture, chart, replay, tell = one_kind(server, "Token bucket", TOKEN_BUCKET)
    for burst in FIRST_BURST, SECOND_BURST:
        tell(burst, f"{of(during(replay, burst))} pass")
    chart.annotate("empty: denied", (92.7, 0.9), (98, 8), arrowprops=ARROW | {"arrowstyle": "-", "relpos": (0.1, 0)})
    chart.text(119, 1.9, "one flows in\nevery 6 seconds", va="center")
    chart.text(SECONDS, 8.6, "capacity: the largest burst", ha="right")
    return picture.svg(
        "Token bucket",
        "Requests over four minutes, and the tokens left. Tokens flow in steadily, one every six seconds, until "
        "there are ten. A burst passes until the bucket is empty; what comes then is denied.",
    )


def fixed_window(server):
    picture, chart, replay, tell = one_kind(server, "Fixed window", FIXED_WINDOW, turns=True)
    passing = [answer.at for answer in during(replay, SECOND_BURST) if answer.ok]
    tell(FIRST_BURST, f"{of(during(replay, FIRST_BURST))} pass")
    tell(SECOND_BURST, f"{len(passing)} pass in {passing[-1] - passing[0]:g} seconds")
    chart.text(144, 5, "all 10 come back\nat once", ha="center", va="center")
    chart.text(216, 5, "none until\nthe next window", ha="center", va="center")
    return picture.svg(
        "Fixed window",
        "The same requests. All ten tokens come back at once when a new window begins, so that ten requests pass "
        "just before the boundary and ten just after it.",
    )


def sliding_window(server):
    picture, chart, replay, tell = one_kind(server, "Sliding window", SLIDING_WINDOW, turns=True)
    for burst in FIRST_BURST, SECOND_BURST:
        tell(burst, f"{of(during(replay, burst))} pass")
    chart.text(166, 1.6, "old requests\ncount less and less", ha="right", va="center")
    return picture.svg(
        "Sliding window",
        "The same requests. What passed in the window before still counts, by the share of it that lies in the "
        "last minute: tokens come back little by little, and no boundary admits a second burst.",
    )


def sliding_log(server):
    picture, chart, replay, tell = one_kind(server, "Sliding log", SLIDING_LOG)
    for burst in FIRST_BURST, SECOND_BURST:
        tell(burst, f"{of(during(replay, burst))} pass")
        taken = next(answer.at for answer in during(replay, burst) if answer.remaining < 5)
        chart.annotate("", (taken + 59.5, 5), (taken, 5), arrowprops=ARROW)
        chart.text(taken + 30, 5.7, "back a minute later", ha="center")
    return picture.svg(
        "Sliding log",
        "The same requests. Each token comes back exactly a minute after it was taken, so that in no minute more "
        "than ten requests pass.",
    )


def four_kinds(server):
    kinds = [
        ("Token bucket", "tokens flow in steadily", TOKEN_BUCKET, False),
        ("Fixed window", "all come back when a window begins", FIXED_WINDOW, True),
        ("Sliding window", "what the last window took counts less and less", SLIDING_WINDOW, True),
        ("Sliding log", "each comes back a minute after it was taken", SLIDING_LOG, False),
    ]
    height, first = 110, 106
    picture = Picture(first + 4 * height + 2, "Four kinds of limits, the same requests", "10 a minute")
    picture.legend_of(LEGEND | {"level": "tokens left", "turn": "new window"}, 62, left=True)
    for n, (name, note, config, turns) in enumerate(kinds):
        replay = server.replay(config, REQUESTS, BEGIN, SECONDS)
        y = first + n * height
        picture.words(MARGIN, y - 10, name, note)
        words = f"{of(replay.answers)} pass; {of(during(replay, SECOND_BURST))} around 12:03"
        picture.text(*picture.at(RIGHT, y - 10), words, ha="right")
        chart = draw_level(picture, replay, SECONDS, y + 38, y + 74, 10, turns=38 * turns)
        draw_requests(picture, chart, replay.answers, y + 28, 7, ms=6)
    minutes(chart)
    return picture.svg(
        "Four kinds of limits, 10 a minute each, and the same requests",
        "Four charts above each other: which of the same requests each kind admits, and the tokens left. "
        "Around a window boundary the fixed window admits two bursts, the others one.",
    )


def overage(server):
    legend = {"passed": "request allowed", "over": "allowed, over the quota"}
    config = FIXED_WINDOW.removesuffix(")") + ", overage => true)"
    picture, chart, replay, tell = one_kind(server, "Soft quota", config, turns=True, least=-8, legend=legend)
    for burst in FIRST_BURST, SECOND_BURST:
        answers = during(replay, burst)
        tell(burst, f"{of(answers)} pass, {sum(answer.remaining < 0 for answer in answers)} are over")
    for turn in replay.turns:
        debt = min(tokens for at, tokens in replay.level if turn - 60 <= at < turn)
        if debt < -2:
            chart.text(turn - 3, debt - 0.4, f"{-debt:g} over", ha="right", va="top")
    chart.text(144, 5, "all 10 are back,\nthe debt is gone", ha="center", va="center")
    return picture.svg(
        "Soft quota",
        "The same requests, of which none is denied. Beyond ten in a window they pass too, marked as over; the "
        "level goes below zero, and when the next window begins all ten are back and the debt is gone.",
    )


def reserve(server):
    """Five calls of 15 tokens each, one of which is denied and tried again."""
    seconds, count, most, debt = 92, 15, 20, 30
    config = f"rl_token_bucket(60, '1 minute', capacity => {most}, max_reserved => {debt})"
    replay = server.replay(config, [Request(at, count, True) for at in (5, 10, 15, 20, 25, 30)], BEGIN, seconds)
    top, row = 204, 24
    picture = Picture(376, "Reserved work", f"a token a second; each job takes {count}")
    picture.legend_of({"passed": "call allowed", "denied": "denied"})
    chart = draw_level(picture, replay, seconds, top, top + 130, most, -debt)
    chart.axhline(-debt, color=C.note, lw=1, ls=(0, (7, 4)), clip_on=False)
    chart.set_xticks(range(0, seconds, 15), [f"{at} s" for at in range(0, seconds, 15)])
    chart.set_yticks([-debt, 0, most])
    chart.text(seconds, 1 - debt, f"maxReserved: {debt}", ha="right")
    chart.text(seconds, most + 2, f"capacity: {most}", ha="right")
    jobs = picture.chart(LEFT, 66, RIGHT, 66 + 5 * row, sharex=chart, ylim=(4.5, -0.5))
    jobs.axis("off")
    job = 0
    for answer in replay.answers:
        jobs.plot(answer.at, job, **MARKS["passed" if answer.ok else "denied"])
        if not answer.ok:
            jobs.text(answer.at - 1.2, job, f"denied: debt above {debt}", ha="right", va="center")
            continue
        due = answer.at + 1
        if answer.retry_at:
            due = answer.retry_at
            jobs.annotate("", (due, job), (answer.at + 0.8, job), arrowprops=ARROW)
        jobs.barh(job, 7, left=due, height=0.75, fc=C.box, ec=C.axis)
        jobs.text(due + 3.5, job, "work", ha="center", va="center")
        jobs.text(-1, job, f"job {job + 1}", ha="right", va="center")
        job += 1
    chart.plot([due, due], [0, most + 8], **TURN, clip_on=False)
    chart.text(due + 0.8, -2, "debt paid back", va="top")
    return picture.svg(
        "Reserved work",
        "Five jobs reserve fifteen tokens each within half a minute. The level goes below zero, and each call "
        "learns when to do its work: every fifteen seconds one, as tokens come in. A call that would bring the "
        "debt above its bound is denied.",
    )


def calendar(server):
    """A week of local days, of which one has 23 hours."""
    zone, begin, hour, days = "Europe/Berlin", "2027-03-25", 3600, 7
    at_once = [1, 2, 1, 1, 2, 1, 1]
    times = server.rows(
        f"""SELECT day, extract(epoch FROM local AT TIME ZONE zone - start)::int AS at
        FROM (SELECT '{zone}' AS zone, timestamp '{begin}' AT TIME ZONE '{zone}' AS start) AS _,
            generate_series(0, {days - 1}) AS day,
            LATERAL (SELECT date '{begin}' + day + hour * interval '1 hour' FROM generate_series(1, 22, 3) AS hour
                WHERE hour <> 4) AS locals (local)
        ORDER BY at"""
    )
    requests = [Request(row.at) for row in times for _ in range(at_once[row.day])]
    start, seconds = f"{begin} 00:00 {zone}", (days * 24 + 6) * hour
    replay = server.replay(f"rl_fixed_window(10, '1 day', timezone => '{zone}')", requests, start, seconds, hour / 4)
    boundaries = [0, *replay.turns]
    names = server.rows(
        f"""SELECT to_char(at AT TIME ZONE '{zone}', 'Dy FMDD Mon') AS day, to_char(at, 'HH24:MI') AS utc
        FROM unnest(ARRAY{boundaries}::float8[]) AS seconds,
            LATERAL (SELECT timestamptz '{start}' + seconds * interval '1 second') AS _ (at)
        ORDER BY at"""
    )
    picture = Picture(298, "Calendar window", f"10 a day in {zone}")
    picture.legend_of(LEGEND)
    chart = draw_level(picture, replay, seconds, 142, 222, 10, turns=46)
    draw_requests(picture, chart, replay.answers, 124, ms=6)
    chart.set_xticks(boundaries, [f"{name.utc}\nUTC" for name in names])
    week = picture.chart(LEFT, 58, RIGHT, 96, sharex=chart, ylim=(0, 1))
    week.axis("off")
    for first, last, name in zip(boundaries, boundaries[1:], names):
        hours, middle = (last - first) / hour, (first + last) / 2
        look = {"fc": C.box, "ec": C.axis} if hours == 24 else {"fc": C.short, "ec": C.denied, "zorder": 2}
        week.bar(first, 1, last - first, align="edge", clip_on=False, **look)
        week.text(middle, 0.72, name.day, ha="center", va="center")
        strong = {} if hours == 24 else {"weight": "bold", "color": C.text}
        week.text(middle, 0.28, f"{hours:g} hours", ha="center", va="center", **strong)
    changed = next(at for at, name, last in zip(boundaries[1:], names[1:], names) if name.utc != last.utc)
    words = "summer time: from here midnight is an hour earlier in UTC"
    chart.annotate(words, (changed, 0), (0, -54), textcoords="offset points", ha="center")
    return picture.svg(
        "Calendar window",
        "A week of a quota of ten a day in Europe/Berlin. A new window begins at each local midnight, also when "
        "summer time begins: that Sunday has 23 hours, and from then on midnight is at 22:00 UTC.",
    )


def shards(server):
    """The rows of a limit, in the order in which four transactions that are open at once took from them."""
    limit, rows, capacity = "everybody", 4, 80
    sessions = [server.session() for _ in range(rows)]
    main = server.main
    for session in [main, *sessions]:
        session.execute(f"SET ratelimit.clock = '{BEGIN}'")

    def take(session, count):
        return session.execute(f"SELECT ok, retry_at::text FROM rl_limit('{limit}', count => {count})").fetchone()

    def level(order, at=BEGIN):
        share = f"rl_token_bucket({capacity / rows}, '1 minute')"
        held = server.rows(
            f"""SELECT shard, (rl_calculate({share}, state, '{at}', 0)).remaining
            FROM rateLimits, jsonb_build_object('value', value, 'ts', extract(epoch FROM ts) * 1000) AS state
            WHERE name = '{limit}' AND shard > 0"""
        )
        by_row = dict(held)
        return [by_row[shard] for shard in order or sorted(by_row)]

    main.execute(f"SELECT rl_define('{limit}', rl_token_bucket({capacity}, '1 minute', shards => {rows}))")
    # The rows are there with the first call, which is given back.
    take(main, 1)
    main.execute(f"SELECT rl_credit('{limit}', '', 1)")
    full = level(None)
    stages = [("at first", "each row holds\na quarter", full, full)]

    # A transaction that took from a row takes from it again, so that each row's tokens don't depend on who got it.
    own = []
    for session in sessions:
        session.execute("BEGIN")
        before = set(session.execute("SELECT shard, value FROM rateLimits").fetchall())
        take(session, 1)
        after = session.execute("SELECT shard, value FROM rateLimits").fetchall()
        own += [row.shard for row in after if row not in before]
    order = sorted(own)
    for session, shard in zip(sessions, own):
        take(session, [4, 8, 12, 16][order.index(shard)] - 1)
        session.execute("COMMIT")
    halved = level(order)
    stages.append(("four at once", "each in a row of\nits own: none waits", full, halved))

    take(main, 24)
    spread = level(order)
    stages.append(("a call for 24", "more than one has:\nfrom several", halved, spread))

    denied = take(main, 20)
    stages.append(("a call for 20", "denied: too few\nin all rows", spread, level(order)))

    at = denied.retry_at
    refilled = level(order, at)
    main.execute(f"SET ratelimit.clock = '{at}'")
    take(main, 20)
    wait = server.rows(f"SELECT extract(epoch FROM timestamptz '{at}' - '{BEGIN}')::int AS seconds")[0].seconds
    stages.append((f"{wait} seconds later", "at its retry_at:\nit passes", refilled, level(order, at)))

    picture = Picture(276, "Shards", f"{capacity} a minute, in {rows} rows")
    picture.legend_of({"level": "tokens left", "taken": "taken"})
    share = capacity / rows
    for n, (name, words, before, after) in enumerate(stages):
        left = MARGIN + n * 138
        picture.words(left, 66, name)
        picture.text(*picture.at(left, 98), words)
        chart = picture.chart(left, 124, left + 114, 214, xlim=(-0.5, rows - 0.5), ylim=(0, share), yticks=[])
        chart.spines.bottom.set_visible(False)
        chart.tick_params(length=0)
        at = range(rows)
        chart.bar(at, share, 0.86, fc=C.box, ec=C.axis, clip_on=False)
        chart.bar(at, after, 0.86, fc=C.area)
        chart.bar(at, [old - new for old, new in zip(before, after)], 0.86, after, **TAKEN)
        chart.hlines(after, [x - 0.43 for x in at], [x + 0.43 for x in at], color=C.level, lw=1.8, clip_on=False)
        for x, old, new in zip(at, before, after):
            if new < old:
                chart.text(x, share * 1.06, f"−{old - new:g}", ha="center")
        chart.set_xticks(at, [f"{tokens:g}" for tokens in after])
        chart.set_xlabel(f"{sum(after):g} left", size=13, weight="bold", color=C.text)
    return picture.svg(
        "Shards",
        "A limit of eighty tokens spread over four rows. Four transactions at once take from a row each. A call "
        "for more than a row holds takes from several, and one for more than all hold is denied.",
    )


DRAWINGS = [
    four_kinds, token_bucket, fixed_window, sliding_window, sliding_log, overage, reserve, calendar, shards
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--socket", required=True, help="the folder of the server's unix socket")
    parser.add_argument("--check", action="store_true", help="compare with docs/pictures, and write nothing there")
    options = parser.parse_args()
    server = Server(options.socket)
    drawn = {f"{draw.__name__.replace('_', '-')}.svg": draw(server) for draw in DRAWINGS}
    server.drop()
    there = {path.name: path.read_text() for path in PICTURES.glob("*.svg")}
    if not options.check:
        for name, svg in drawn.items():
            (PICTURES / name).write_text(svg)
        return
    for name in sorted(drawn | there):
        same = drawn.get(name) == there.get(name)
        print(f"ok - {name}" if same else f"not ok - {name} is not as it is drawn now: make pictures")
    raise SystemExit(0 if drawn == there else 1)


if __name__ == "__main__":
    main()

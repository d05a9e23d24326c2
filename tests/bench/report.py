"""The report of the benchmark: tables in Markdown, numbers in JSON, a chart in SVG.

Measures nothing. Shows the settings, but not when or where the numbers were made.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[1] / "pictures"))
import look

# The labels of lines.
RL = "SELECT (rl_limit(…)).ok"
STAR = "SELECT * FROM rl_limit(…)"
SQL_STORE = "rl_limit, ratelimit.access = sql"
BARE = "UPDATE by primary key"
SETWISE = "set-based UPDATE or upsert"
PLPGSQL = "token bucket in PL/pgSQL"
UPSERT = "upsert of Node limiters"
REDIS = "token bucket in Redis"
FILE = "rl_limit of the SQL file"
EIGHT = "eight lines of PL/pgSQL"
SELECT_ROW = "SELECT by primary key"
SELECT_1 = "SELECT 1"
MEMORY = "rl_limit, in memory"
SAVED = "rl_limit, in memory, saved each second"
NOOP = "a function that does nothing"

# What the lines are called in the tables and the chart.
NAMES = {
    MEMORY: "in memory", SAVED: "with save", RL: "rl_limit", SQL_STORE: "rl_limit by SQL", SETWISE: "set-based SQL", BARE: "bare UPDATE", PLPGSQL: "PL/pgSQL", UPSERT: "upsert",
    FILE: "SQL file", EIGHT: "eight lines", REDIS: "Redis", SELECT_ROW: "bare SELECT", NOOP: "no-op", SELECT_1: "SELECT 1",
}
# The tables of docs/performance.md: title; a column's name and its line, the first of those that a work has; works by
# their rows' names. No cell is empty: a work without one of the lines has no row.
TABLES = [
    (
        "In the table",
        {"rl_limit": [RL], "rl_limit by SQL": [SQL_STORE], "plain SQL": [BARE, SELECT_ROW, SETWISE]},
        {
            "hot_allowed": "one hot key, allowed",
            "hot_allowed_durable": "one hot key, allowed, synchronous_commit on",
            "hot_denied": "one hot key, denied",
            "single_16": "100,000 keys, allowed",
            "single_1": "100,000 keys, allowed, 1 client",
            "setwise_allowed": "100,000 keys in one statement, allowed",
            "setwise_new": "100,000 new keys in one statement",
        },
    ),
    (
        "In memory",
        {
            "in memory": [MEMORY], "with save": [SAVED], "in the table": [RL], "Redis": [REDIS],
            "SELECT 1": [SELECT_1],
        },
        {
            "memory_hot": "one hot key, allowed",
            "memory_denied": "one hot key, denied",
            "memory_keys": "100,000 keys, allowed",
        },
    ),
    (
        "The SQL file",
        {"SQL file": [FILE], "extension": [RL], "eight lines": [EIGHT], "PL/pgSQL": [PLPGSQL], "plain SQL": [BARE, SELECT_ROW]},
        {
            "file_hot_allowed": "one hot key, allowed",
            "file_hot_denied": "one hot key, denied",
            "file_single_16": "100,000 keys, allowed",
            "file_single_1": "100,000 keys, allowed, 1 client",
        },
    ),
    (
        "Other implementations",
        {"rl_limit": [RL], "PL/pgSQL": [PLPGSQL], "upsert": [UPSERT], "Redis": [REDIS]},
        {
            "hot_allowed": "one hot key, allowed",
            "hot_denied": "one hot key, denied",
            "single_16": "100,000 keys, allowed",
            "single_1": "100,000 keys, allowed, 1 client",
        },
    ),
]
IN_CHART = ["single_16", "hot_allowed", "hot_denied", "setwise_allowed", "memory_hot", "memory_keys"]


@dataclass
class Bar:
    """The bar of the first line of a work against another one."""

    what: str  # "rate", calls a second, "time", or "µs", the microseconds of a call above it
    word: str  # "at least" or "at most"
    bound: float

    def judged(self, value):
        reached = value >= self.bound if self.word == "at least" else value <= self.bound
        return {"bar": f"{self.word} {self.bound:g}", "reached": "yes" if reached else "no"}


def spread(values, show):
    """Formats the lowest and the highest of several."""
    return f"{show(min(values))} to {show(max(values))}" if len(values) > 1 else ""


def line(label, rates, first, bar, unit, cpus):
    """The statistics of a line. first: the rates of the line that it is compared with, or None. cpus: the
    server's microseconds of CPU a call, where they were measured."""
    values, show = rates, "{:,.0f}".format
    if unit == "time":
        values, show = [1 / rate for rate in rates], "{:.3f} s".format
    about = {"label": label, "rates": rates, "median": show(median(values)), "spread": spread(values, show)}
    if cpus:
        about |= {"cpus": cpus, "cpu": f"{median(cpus):.1f} µs"}
    if first and bar and bar.what == "µs":
        above = [1e6 / a - 1e6 / b for a, b in zip(first, rates)]
        about["ratio"] = f"{median(above):.2f} µs a call above it"
        about["ratios"] = spread(above, "{:.2f}".format)
        about |= bar.judged(median(above))
    elif first:
        what = bar.what if bar else "rate"
        ratios = [a / b if what == "rate" else b / a for a, b in zip(first, rates)]
        about["ratio"] = f"{median(ratios):.2f} × its {what}"
        about["ratios"] = spread(ratios, "{:.2f}".format)
        if bar:
            about |= bar.judged(median(ratios))
    return about


def fact(label, shown, value, bar):
    """A line with one value, that is compared with nothing but its bar."""
    return {"label": label, "median": shown} | bar.judged(value)


def table(header, rows):
    """A Markdown table with aligned columns."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    rule = ["-" * widths[0]] + ["-" * (width - 1) + ":" for width in widths[1:]]
    padded = lambda row: [row[0].ljust(widths[0])] + [cell.rjust(w) for cell, w in zip(row, widths)][1:]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [padded(header), rule, *map(padded, rows)])


def work_table(work):
    columns = {
        "label": "", "median": work["unit"], "spread": "min to max", "p99": "99th percentile", "cpu": "CPU a call",
        "ratio": "the first line is", "ratios": "min to max", "bar": "bar", "reached": "reached",
    }
    columns = {column: title for column, title in columns.items() if any(column in line for line in work["lines"])}
    rows = [[line.get(column, "") for column in columns] for line in work["lines"]]
    return table(list(columns.values()), rows)


def summary(works):
    """The tables of docs/performance.md: medians side by side, in thousands of calls a second."""
    rates = {work["name"]: {line["label"]: line["rates"] for line in work["lines"] if "rates" in line} for work in works}
    parts = []
    for title, columns, rows_of in TABLES:
        rows = []
        for name, row in rows_of.items():
            first = lambda labels: next((label for label in labels if label in rates.get(name, {})), None)
            lines = [first(labels) for labels in columns.values()]
            if all(lines):
                rows.append([row, *(f"{median(rates[name][label]) / 1000:.1f}" for label in lines)])
        if rows:
            parts.append(f"## {title}\n\n{table(['thousands of calls a second', *columns], rows)}")
    return "\n\n".join(parts)


def markdown(settings, works):
    parts = list(filter(None, [summary(works)]))
    parts += [f"### {work['title']}\n\n{work_table(work)}" for work in works]
    parts += ["### settings\n\n" + "\n".join(f"- {name}: {value}" for name, value in settings.items())]
    return "\n\n".join(parts) + "\n"


def svg(works):
    """Bars of the median rates: a panel a work, two in a row."""
    panels = [work for name in IN_CHART for work in works if work["name"] == name]
    shown = [[line for line in work["lines"] if line["label"] != STAR] for work in panels]
    heights = [44 + 22 * max(map(len, shown[n : n + 2])) for n in range(0, len(shown), 2)]
    picture = look.Picture(8 + sum(heights), width=760)
    for number, (work, lines) in enumerate(zip(panels, shown)):
        left, top = 16 + number % 2 * 380, 8 + sum(heights[: number // 2])
        picture.words(left, top + 20, work["title"])
        rates = [median(line["rates"]) / 1000 for line in lines]
        upper, lower = top + 29, top + 29 + 22 * len(lines)
        chart = picture.chart(left + 98, upper, left + 278, lower, xlim=(0, max(rates)), xticks=[])
        chart.spines.bottom.set_visible(False)
        colours = [look.C.level if line["label"] in (RL, SQL_STORE, MEMORY, SAVED) else look.C.bar for line in lines]
        bars = chart.barh(range(len(lines)), rates, 0.77, color=colours, clip_on=False)
        chart.bar_label(bars, fmt="%.1fk/s", padding=6, color=look.C.text)
        chart.set_yticks(range(len(lines)), [NAMES[line["label"]] for line in lines], color=look.C.text)
        chart.set_ylim(len(lines) - 0.5, -0.5)
    about = "Calls a second, with the extension and with what one would write without it"
    return picture.svg(about, "Bars of the median rates; docs/performance.md has the numbers.")


def as_json(settings, works):
    return json.dumps({"settings": settings, "works": works}, indent=1, ensure_ascii=False) + "\n"

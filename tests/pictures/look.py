"""How the pictures of the documents look, in the light and in the dark; knows nothing of limits.

matplotlib draws them, in the light's colours. No mark or area differs from another by its colour alone.
"""

import io
import re
from html import escape
from types import SimpleNamespace

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Patch
from matplotlib.transforms import IdentityTransform

WIDTH, MARGIN = 720, 20  # pixels, as all sizes here

# name: (in the light, in the dark)
COLOURS = {
    "text": ("#1f2328", "#e6edf3"), "note": ("#57606a", "#9da7b3"), "axis": ("#8c959f", "#6e7681"),
    "card": ("#ffffff", "#0d1117"), "edge": ("#d0d7de", "#30363d"), "box": ("#f6f8fa", "#161b22"),
    "area": ("#d6e8fb", "#14304f"), "level": ("#0969da", "#58a6ff"), "passed": ("#0550ae", "#79c0ff"),
    "denied": ("#bc4c00", "#ffa657"), "short": ("#fff1e5", "#3d1f0d"), "bar": ("#afb8c1", "#6e7681"),
}
# The reader's own; where there is room for text, it is for the wider DejaVu Sans.
FONT = 'font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif'
C = SimpleNamespace(**{name: light for name, (light, _) in COLOURS.items()})

matplotlib.rcParams.update({
    "figure.dpi": 72, "svg.fonttype": "none", "svg.hashsalt": "ratelimit", "font.size": 12, "text.color": C.note,
    "axes.facecolor": "none", "axes.edgecolor": C.axis, "axes.labelcolor": C.note, "xtick.color": C.axis,
    "xtick.labelcolor": C.note, "ytick.color": C.axis, "ytick.labelcolor": C.note, "ytick.left": False,
    "axes.spines.left": False, "axes.spines.top": False, "axes.spines.right": False, "hatch.color": C.denied,
    "hatch.linewidth": 1.3, "legend.frameon": False, "legend.borderpad": 0, "legend.borderaxespad": 0,
    "legend.handletextpad": 0.5, "legend.handlelength": 1, "legend.columnspacing": 1.5,
})

MARKS = {
    "passed": {"color": C.passed, "marker": "o", "ms": 7, "mew": 0, "ls": ""},
    "over": {"color": C.passed, "marker": "o", "ms": 6, "mew": 1.7, "mfc": C.card, "ls": ""},
    "denied": {"color": C.denied, "marker": "x", "ms": 5.5, "mew": 1.7, "ls": ""},
}
TAKEN = {"fc": "none", "hatch": "/////", "ec": C.denied, "lw": 0}
AREAS = {"level": {"fc": C.area, "ec": C.level}, "taken": TAKEN}
TURN = {"color": C.note, "ls": (0, (2, 3)), "lw": 1}
ARROW = {"arrowstyle": "-|>,head_length=.5,head_width=.25", "color": C.note, "lw": 1, "shrinkA": 0, "shrinkB": 0}


class Picture(Figure):
    """A card; sizes are pixels, and y goes down from its upper edge."""

    def __init__(self, height, title="", note="", width=WIDTH):
        super().__init__(figsize=(width / 72, height / 72), dpi=72, facecolor="none")
        self.width, self.height = width, height
        shape = "round,pad=0,rounding_size=6"
        card = FancyBboxPatch((0.5, 0.5), width - 1, height - 1, shape, fc=C.card, ec=C.edge, zorder=-1)
        card.set_transform(IdentityTransform())
        self.add_artist(card)
        self.words(MARGIN, 34, title, note, size=16)

    def at(self, x, y):
        return x / self.width, 1 - y / self.height

    def words(self, x, y, words, note="", size=13):
        """A heading, and a note after it."""
        strong = self.text(*self.at(x, y), words, size=size, weight="bold", color=C.text)
        self.draw_without_rendering()
        self.text(*self.at(strong.get_window_extent().x1 + 10, y), note)

    def chart(self, left, top, right, bottom, **more):
        """Axes between pixels."""
        x, y = self.at(left, bottom)
        return self.add_axes((x, y, (right - left) / self.width, (bottom - top) / self.height), **more)

    def legend_of(self, entries, y=34, left=False):
        """Marks, areas and lines, each with what it means."""
        handles = [
            Line2D([], [], **MARKS[kind]) if kind in MARKS
            else Patch(**AREAS[kind]) if kind in AREAS
            else Line2D([], [], **TURN)
            for kind in entries
        ]
        x, y = self.at(MARGIN if left else self.width - MARGIN, y + 4)
        where = "lower left" if left else "lower right"
        self.legend(handles, entries.values(), ncols=len(entries), loc=where, bbox_to_anchor=(x, y))

    def svg(self, title, description):
        """The same file whenever the same was drawn: no date, and coordinates of two digits after the point."""
        file = io.StringIO()
        self.savefig(file, format="svg", facecolor="none", metadata={"Date": None})
        body = file.getvalue().partition("</metadata>")[2]
        body = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), body)
        body = re.sub(r"<!--.*?-->|font-family: [^;]+; ", "", body)
        body = re.sub(r"\s*\n\s*", "\n", re.sub(r" ?\n(?=[ML] |z?\" )", " ", body)).lstrip()
        for name, (light, _) in COLOURS.items():
            body = body.replace(light, f"var(--{name})")
        rules = ("".join(f"--{name}:{pair[n]};" for name, pair in COLOURS.items()) for n in (0, 1))
        style = f"svg{{{FONT};{next(rules)}}}\n@media (prefers-color-scheme:dark){{svg{{{next(rules)}}}}}"
        return f"""<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img"
 viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}" aria-labelledby="title desc">
<title id="title">{escape(title, quote=False)}</title>
<desc id="desc">{escape(description, quote=False)}</desc>
<style>
{style}
</style>
{body}"""

"""A picture in SVG: a card with text, lines and marks, for light and dark screens.

Owns how things look; knows nothing of limits. Coordinates are rounded, so that the same data make the
same file. No mark or area differs from another by its colour alone.
"""

from html import escape

WIDTH = 720
MARGIN = 20

# class: (properties in the light, properties in the dark)
STYLE = {
    "text": (
        'font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:#1f2328',
        "fill:#e6edf3",
    ),
    ".title": ("font-size:16px;font-weight:600", ""),
    ".strong": ("font-weight:600", ""),
    ".note": ("font-size:12px;font-weight:400;fill:#57606a", "fill:#9da7b3"),
    ".card": ("fill:#ffffff;stroke:#d0d7de", "fill:#0d1117;stroke:#30363d"),
    ".axis": ("fill:none;stroke:#8c959f", "stroke:#6e7681"),
    ".turn": ("fill:none;stroke:#57606a;stroke-dasharray:2 3", "stroke:#9da7b3"),
    ".most": ("fill:none;stroke:#57606a;stroke-dasharray:7 4", "stroke:#9da7b3"),
    ".lead": ("fill:none;stroke:#57606a", "stroke:#9da7b3"),
    ".tip": ("fill:#57606a", "fill:#9da7b3"),
    ".area": ("fill:#d6e8fb", "fill:#14304f"),
    ".level": ("fill:none;stroke:#0969da;stroke-width:1.8;stroke-linejoin:round", "stroke:#58a6ff"),
    ".passed": ("fill:#0550ae", "fill:#79c0ff"),
    ".debt": ("fill:url(#hatched)", ""),
    ".over": ("fill:#ffffff;stroke:#0550ae;stroke-width:1.7", "fill:#0d1117;stroke:#79c0ff"),
    ".denied": ("fill:none;stroke:#bc4c00;stroke-width:1.7;stroke-linecap:round", "stroke:#ffa657"),
    ".hatch": ("fill:none;stroke:#bc4c00;stroke-width:1.3", "stroke:#ffa657"),
    ".short": ("fill:#fff1e5;stroke:#bc4c00;stroke-width:1.5", "fill:#3d1f0d;stroke:#ffa657"),
    ".box": ("fill:#f6f8fa;stroke:#8c959f", "fill:#161b22;stroke:#6e7681"),
}


def number(value):
    """A coordinate, with one digit after the point at most; adding zero turns -0 into 0."""
    return f"{round(value, 1) + 0.0:g}"


def at(x, y):
    return f"{number(x)} {number(y)}"


def width(words):
    """About how wide a note is; fonts differ."""
    return sum(4.4 if letter in " fijlrt,.:" else 7.4 for letter in words)


class Picture:
    def __init__(self, height, title, description):
        self.height, self.title, self.description = height, title, description
        self.parts, self.used = [], {"text", "card"}

    def text(self, x, y, words, kind="", anchor="start", note=""):
        """A line of text, and a note after it."""
        self.used.update([kind, "note"] if note else [kind])
        more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
        words, note = escape(words, quote=False), escape(note, quote=False)
        note = note and f'<tspan class="note" dx="10">{note}</tspan>'
        self.parts.append(f'<text x="{number(x)}" y="{number(y)}"{more}>{words}{note}</text>')

    def lines(self, x, y, words, kind="note", anchor="start", height=15):
        """Several lines of text, the first at y."""
        for n, line in enumerate(words):
            self.text(x, y + n * height, line, kind, anchor)

    def path(self, kind, path):
        self.used.add(kind)
        self.parts.append(f'<path class="{kind}" d="{path}"/>')

    def line(self, kind, *points):
        self.path(kind, "M" + "L".join(at(x, y) for x, y in points))

    def rect(self, kind, x, y, width, height, more=""):
        self.used.add(kind)
        box = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        self.parts.append(f'<rect class="{kind}" {box}{more}/>')

    def arrow(self, x1, y, x2):
        """A level arrow to the right."""
        self.line("lead", (x1, y), (x2, y))
        self.path("tip", f"M{at(x2, y)}L{at(x2 - 7, y - 3.5)}L{at(x2 - 7, y + 3.5)}z")

    def mark(self, kind, x, y, radius=3.5):
        """A request: passed a filled circle, over a ring, denied a cross. In legends lines and areas, too."""
        if kind == "turn":
            self.line(kind, (x, y - 7), (x, y + 7))
        elif kind == "level":
            self.rect("area", x - 5, y - 4, 10, 8)
            self.line(kind, (x - 5, y - 4), (x + 5, y - 4))
        elif kind == "debt":
            self.rect(kind, x - 5, y - 5, 10, 10)
        elif kind == "denied":
            r = radius - 0.6
            self.path(kind, "".join(f"M{at(x - r, y - s * r)}L{at(x + r, y + s * r)}" for s in (1, -1)))
        else:
            self.used.add(kind)
            r = radius - 0.6 if kind == "over" else radius
            self.parts.append(f'<circle class="{kind}" cx="{number(x)}" cy="{number(y)}" r="{number(r)}"/>')

    def legend(self, y, *entries, x=None):
        """Marks and what they mean, from x on, or up to the right margin."""
        widths = [36 + width(words) for _, words in entries]
        x = (x or WIDTH - MARGIN + 20 - sum(widths)) + 5
        for (kind, words), step in zip(entries, widths):
            self.mark(kind, x, y - 4)
            self.text(x + 11, y, words, "note")
            x += step

    def __str__(self):
        if "debt" in self.used:
            self.used.add("hatch")
        rules = {kind: rule for kind, rule in STYLE.items() if kind.lstrip(".") in self.used}
        light = "\n".join(f"{kind}{{{rule}}}" for kind, (rule, _) in rules.items())
        dark = "\n".join(f"{kind}{{{rule}}}" for kind, (_, rule) in rules.items() if rule)
        size = f'viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}"'
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(self.title, quote=False)}</title>',
            f'<desc id="desc">{escape(self.description, quote=False)}</desc>',
            f"<style>\n{light}\n@media (prefers-color-scheme:dark){{\n{dark}\n}}\n</style>",
        ]
        if "hatch" in self.used:
            pattern = '<pattern id="hatched" width="6" height="6" patternUnits="userSpaceOnUse">'
            head.append(f'<defs>{pattern}<path class="hatch" d="M-1 1L1-1M0 6L6 0M5 7L7 5"/></pattern></defs>')
        card = f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{self.height - 1}" rx="6"/>'
        return "\n".join([*head, card, *self.parts, "</svg>", ""])

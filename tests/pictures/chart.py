"""Draws answers over time into a picture: requests as columns of marks, the level below, an axis."""

from svg import MARGIN, WIDTH, at

LEFT, RIGHT = 64, WIDTH - MARGIN


def simplified(points):
    """Leaves out points on a straight line between their neighbours."""
    kept = []
    for point in points:
        while len(kept) > 1:
            (x0, y0), (x1, y1), (x2, y2) = kept[-2], kept[-1], point
            if abs((x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)) > 0.02 * max(1, abs(x2 - x0)):
                break
            if (y1 - y0) * (y2 - y1) < 0:  # there and back again
                break
            kept.pop()
        if not kept or kept[-1] != point:
            kept.append(point)
    return kept


def with_zeros(level):
    """Adds the points at which the level passes 0."""
    points = level[:1]
    for (t1, v1), (t2, v2) in zip(level, level[1:]):
        if v1 * v2 < 0:
            points.append((t1 + (t2 - t1) * v1 / (v1 - v2), 0))
        points.append((t2, v2))
    return points


class Chart:
    """A stretch of time, from 0 to so many seconds, across a picture."""

    def __init__(self, picture, seconds):
        self.picture, self.seconds = picture, seconds

    def x(self, seconds):
        return LEFT + (RIGHT - LEFT) * seconds / self.seconds

    def requests(self, answers, bottom, radius=3.5, pitch=8):
        """Marks, those of one time above each other, the first at the bottom."""
        height = {}
        for answer in answers:
            kind = "denied" if not answer.ok else "over" if answer.remaining < 0 else "passed"
            row = height[answer.at] = height.get(answer.at, -1) + 1
            self.picture.mark(kind, self.x(answer.at), bottom - row * pitch, radius)

    def level(self, level, top, bottom, most, least=0):
        """The tokens left, as a line over an area; what is below 0 is hatched. Returns tokens to y."""

        def y(tokens):
            return top + (bottom - top) * (most - tokens) / (most - least)

        def path(clamp):
            points = simplified([(self.x(t), y(clamp(v))) for t, v in with_zeros(level)])
            return "L".join(at(*point) for point in points)

        begin, end = at(self.x(level[0][0]), y(0)), at(self.x(level[-1][0]), y(0))
        self.picture.path("area", f"M{begin}L{path(lambda v: max(v, 0))}L{end}z")
        if least < 0:
            self.picture.path("debt", f"M{begin}L{path(lambda v: min(v, 0))}L{end}z")
        self.picture.line("most", (LEFT, y(most)), (RIGHT, y(most)))
        self.picture.line("axis", (LEFT, y(0)), (RIGHT, y(0)))
        self.picture.path("level", f"M{path(lambda v: v)}")
        for tokens in (most, 0):
            self.picture.text(LEFT - 8, y(tokens) + 4, f"{tokens:g}", "note", "end")
        middle = (y(most) + y(0)) / 2
        if y(0) - y(most) >= 50:
            self.picture.lines(LEFT - 8, middle - 3, ["tokens", "left"], anchor="end")
        return y

    def turns(self, turns, top, bottom):
        for turn in turns:
            self.picture.line("turn", (self.x(turn), top), (self.x(turn), bottom))

    def times(self, y, labels):
        """Ticks below the axis, and what stands at each: (seconds, line, …)."""
        for seconds, *lines in labels:
            self.picture.line("axis", (self.x(seconds), y), (self.x(seconds), y + 4))
            self.picture.lines(self.x(seconds), y + 18, lines, anchor="middle")

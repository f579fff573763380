"""Draws the figures of the documentation: python docs/figures/draw.py

Each figure has a light background of its own, so that it can be read in light and dark themes.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

HERE = Path(__file__).parent
INK, SOFT, LINE = "#1c2733", "#5a6b7b", "#8a99a8"
BLUE, GREEN, AMBER, ROSE, GREY = "#dbe9f9", "#dcf1e1", "#fbecc8", "#f8dcdc", "#eceff2"


class Figure:
    """Boxes, texts and arrows, written as SVG."""

    def __init__(self, name: str, width: int, height: int, title: str):
        self.path = HERE / f"{name}.svg"
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-family="sans-serif">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z" fill="{SOFT}"/></marker>'
            "</defs>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#fdfdfe"/>',
        ]

    def text(self, x, y, text, size=13, color=INK, anchor="start", bold=False) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}" '
                          f'text-anchor="{anchor}"{weight}>{escape(text)}</text>')

    def box(self, x, y, width, height, text="", fill=GREY, below="", size=13) -> None:
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" '
                          f'fill="{fill}" stroke="{LINE}"/>')
        middle = y + height / 2 + 4 - (7 if below else 0)
        if text:
            self.text(x + width / 2, middle, text, size, anchor="middle")
        if below:
            self.text(x + width / 2, middle + 15, below, 11, SOFT, "middle")

    def line(self, x1, y1, x2, y2, arrow=False, dashed=False, color=SOFT) -> None:
        more = ' marker-end="url(#a)"' if arrow else ""
        more += ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" '
                          f'stroke-width="1.3"{more}/>')

    def write(self) -> None:
        self.path.write_text("\n".join([*self.parts, "</svg>"]) + "\n")


def layers() -> None:
    """The folders, from the commands down to what knows nothing of the others."""
    rows = [
        (("cli/", "bench/", "launch/"), "commands, measurements, starting jobs", GREY),
        (("comm/",), "Comm: what programs use; set-up of a communicator", BLUE),
        (("internode/",), "communicators over several nodes", BLUE),
        (("engine/",), "one communicator on one node: its calls", BLUE),
        (("tuning/", "buffers/"), "which algorithm; arguments parsed", AMBER),
        (("algos",), "an algorithm's functions, by its number", GREEN),
        (("coll/",), "the algorithms: Bcast, Reduce, Allreduce, streams ...", GREEN),
        (("barrier",), "flags, barriers, the bank barrier", GREEN),
        (("sync/",), "the one wait, trees, who waits for whom", GREEN),
        (("segment",), "the one mapping: layout, create, attach, reserve", ROSE),
        (("mpi/", "topology/", "datatype/", "memory/"),
         "MPI's progress; hardware; types; heaps", GREY),
        (("config",), "settings", GREY),
        (("errors", "algorithms", "base/"), "exceptions; names; atomics, C headers", GREY),
    ]
    figure = Figure("layers", 820, 44 + 38 * len(rows), "The layers of smcoll")
    figure.text(40, 26, "A folder imports from those below it, never from those above.", 13, SOFT)
    for number, (names, what, fill) in enumerate(rows):
        y = 40 + 38 * number
        width = (380 - 6 * (len(names) - 1)) / len(names)
        for place, name in enumerate(names):
            figure.box(40 + place * (width + 6), y, width, 30, name, fill)
        figure.text(440, y + 20, what, 13)
    figure.line(22, 44, 22, 30 + 38 * len(rows), arrow=True)
    figure.write()


def segment() -> None:
    """From the whole mapping to one flag line."""
    figure = Figure("segment", 860, 520, "The segment of one communicator on one node")

    def zoom(x1, x2, y, left, right, below):
        figure.line(x1, y, left, below, dashed=True, color=LINE)
        figure.line(x2, y, right, below, dashed=True, color=LINE)

    figure.text(30, 30, "the mapping (one file, sparse)", 12, SOFT)
    figure.box(30, 38, 90, 44, "header", GREY, "nonce, sizes")
    figure.box(120, 38, 330, 44, "rank 0", BLUE, "written by rank 0 only")
    figure.box(450, 38, 200, 44, "rank 1", GREY)
    figure.box(650, 38, 180, 44, "...", GREY)
    zoom(120, 450, 82, 30, 830, 126)
    figure.text(140, 120, "a rank's range", 12, SOFT)
    figure.box(30, 126, 240, 44, "control pages", AMBER, "reserved at set-up")
    figure.box(270, 126, 250, 44, "streams", GREEN, "when first needed")
    figure.box(520, 126, 310, 44, "data regions", ROSE, "when first needed")
    zoom(30, 270, 170, 30, 830, 214)
    figure.text(40, 208, "control pages", 12, SOFT)
    x = 30
    for width, name, below in ((88, "status", "poison, busy"), (70, "asleep", ""),
                               (104, "bank fields", "bank barrier"), (96, "costs", "of reading"),
                               (120, "ring", "signatures"), (108, "2 exchange", "slots"),
                               (108, "inline slots", "32 a bank"),
                               (106, "flag lines", "1 a segment")):
        figure.box(x, 214, width, 44, name, AMBER, below)
        x += width
    figure.text(30, 296, "streams: one ring for each other rank", 12, SOFT)
    figure.box(30, 302, 150, 44, "credits", GREEN, "a line for each rank")
    for cell in range(4):
        figure.box(180 + 52 * cell, 302, 52, 44, f"cell {cell}" if cell < 3 else "...", GREEN,
                   "256 B" if cell < 3 else "")
    for chunk in range(3):
        figure.box(388 + 74 * chunk, 302, 74, 44, f"chunk {chunk}" if chunk < 2 else "...", GREEN)
    figure.text(30, 384, "data regions: a region for each segment, segments in banks", 12, SOFT)
    for bank in range(2):
        for region in range(4):
            name = f"segment {region}" if region < 3 else "..."
            figure.box(30 + 400 * bank + 100 * region, 390, 100, 44, name, ROSE,
                       f"bank {bank}" if region < 3 else "")
    figure.text(30, 472, "a flag line (128 bytes)", 12, SOFT)
    x = 180
    for width, name, fill in ((90, "flag", BLUE), (90, "call", GREY), (110, "signature", GREY),
                              (90, "nbytes", GREY), (270, "payload: a short message", GREY)):
        figure.box(x, 454, width, 30, name, fill)
        x += width
    figure.text(180, 504, "the flag is stored last (release) and loaded first (acquire)", 12, SOFT)
    figure.write()


def short_call() -> None:
    """An Allreduce of 8 bytes on three ranks of one node."""
    figure = Figure("short-call", 860, 330, "A short Allreduce on one node: the flags over time")
    figure.text(30, 28, "Allreduce of 8 bytes, exchange number e, three ranks; rank 2 comes late",
                13, SOFT)
    starts, posts = (70, 100, 270), []
    for rank, start in enumerate(starts):
        y = 52 + 82 * rank
        figure.text(24, y + 25, f"rank {rank}", 13, bold=True)
        figure.box(start + 10, y, 84, 38, "publish", GREY, "number, call")
        figure.box(start + 94, y, 62, 38, "copy in", ROSE, "own line")
        figure.box(start + 156, y, 66, 38, "flag = e", BLUE, "release")
        posts.append((start + 222, y))
    last = posts[2][0] + 40
    for rank, (x, y) in enumerate(posts):
        if last - x > 50:
            figure.box(x, y, last - x, 38, "wait for the other flags", AMBER, "acquire")
        figure.box(last if rank < 2 else x, y, 150, 38, "reduce in rank order", GREEN,
                   "the same bits on all")
        end = (last if rank < 2 else x) + 150
        figure.box(end, y, 60, 38, "leave", GREY)
    for source, target in ((0, 1), (2, 1), (2, 0), (1, 2)):
        x, y = posts[source]
        below = target > source
        figure.line(x - 33, y + (38 if below else 0), max(x + 12, posts[target][0] + 4),
                    52 + 82 * target + (0 if below else 38), arrow=True)
    figure.line(60, 292, 830, 292, arrow=True)
    figure.text(826, 312, "time", 12, SOFT, "end")
    figure.text(60, 312, "Each rank writes its own line only. The next exchange uses the other "
                "slot.", 12, SOFT)
    figure.write()


def across_nodes() -> None:
    """A short Allreduce on two nodes of three ranks."""
    figure = Figure("across-nodes", 860, 330, "A short Allreduce on two nodes")
    stages = ((150, "1. Reduce in the node"), (400, "2. leaders exchange"),
              (640, "3. Bcast in the node"))
    for x, name in stages:
        figure.text(x, 30, name, 13, bold=True)
    for node in range(2):
        top = 46 + 142 * node
        figure.box(24, top, 812, 122, "", GREY if node else BLUE)
        figure.text(34, top + 66, f"node {node}", 13, bold=True)
        for rank in range(3):
            y = top + 10 + 36 * rank
            name = f"rank {3 * node + rank}"
            leader = rank == 0
            figure.box(110, y, 90, 28, name, AMBER if leader else "#ffffff", size=12)
            figure.box(300, y, 90, 28, "leader" if leader else "waits",
                       AMBER if leader else "#ffffff", size=12)
            figure.box(560, y, 90, 28, "leader" if leader else "waits",
                       AMBER if leader else "#ffffff", size=12)
            figure.box(740, y, 84, 28, "result", GREEN, size=12)
            figure.line(200, y + 14, 298, top + 24, arrow=True)
            figure.line(650, top + 24, 738, y + 14, arrow=True)
    figure.line(390, 70, 558, 206, arrow=True, color="#b0413e")
    figure.line(390, 206, 558, 70, arrow=True, color="#b0413e")
    figure.text(474, 72, "one message each", 12, SOFT, "middle")
    figure.text(474, 88, "way, by MPI", 12, SOFT, "middle")
    figure.text(30, 324, "Grey arrows: shared memory of the node. Long vectors: several ranks of a "
                "node exchange a slice each.", 12, SOFT)
    figure.write()


if __name__ == "__main__":
    for draw in (layers, segment, short_call, across_nodes):
        draw()

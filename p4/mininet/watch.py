"""Samples switches while hosts send, changes their parameters halfway, and draws the samples as an SVG picture."""

import os
import re
import threading
import time

PERIOD_S = 0.5
PATIENCE_S = 10  # for the last answer of a busy switch
CONSTANTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../constants.p4")
WIDTH, HEIGHT, LEFT, GAP = 640, 180, 70, 40
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8f5db7")


class Watch(threading.Thread):
    """`popen(switch, words)` starts a command next to a switch; `changes` are NAME=VALUE, as `dcqcn-lab p4 set` takes them."""

    def __init__(self, switches, popen, commands, changes, seconds):
        super().__init__(daemon=True)
        self.switches, self.popen, self.commands, self.changes, self.seconds = switches, popen, commands, changes, seconds
        self.samples = {switch: [] for switch in switches}  # (time in s, deepest queue in packets, packets marked so far)
        self.changed_s = None
        self.over = threading.Event()
        with open(CONSTANTS) as file:
            marked = re.search(r"STAT_CP_ECN_MARKED_PACKETS = (\d+)", file.read()).group(1)
        # `dcqcn-lab p4 read` reads every table, which takes seconds while packets arrive.
        self.queries = f"register_read last_depth_packets\ncounter_read stats {marked}\n"

    def run(self):
        start = time.monotonic()
        clis = {switch: self.popen(switch, self.commands.cli()) for switch in self.switches}
        while not self.over.is_set():
            now_s = time.monotonic() - start
            if self.changes and self.changed_s is None and now_s >= self.seconds / 2:
                self.changed_s = now_s
                for switch in self.switches:
                    changed = self.popen(switch, self.commands.set(self.changes)).communicate()[0]
                    print(f"{switch}: {changed.strip()}")
            for switch in self.switches:
                clis[switch].stdin.write(self.queries)
                clis[switch].stdin.flush()
                depths = self.answer(clis[switch], r"last_depth_packets= ([\d, ]+)")
                marked = self.answer(clis[switch], r"(\d+) packets\)")
                if depths and marked:
                    deepest = max(int(depth) for depth in depths.split(","))
                    self.samples[switch].append((time.monotonic() - start, deepest, int(marked)))
            self.over.wait(PERIOD_S)
        for cli in clis.values():
            cli.communicate()

    def answer(self, cli, pattern):
        """The first group of the next matching line; None at the end of the output."""
        for line in iter(cli.stdout.readline, ""):
            if found := re.search(pattern, line):
                return found.group(1)
        return None

    def stop(self, plot):
        """Ends sampling, and writes the picture to the file `plot`, if any."""
        self.over.set()
        self.join(PATIENCE_S)
        if plot:
            with open(plot, "w") as file:
                file.write(self.picture())
            print(f"wrote {plot}")

    def picture(self):
        depths = {name: [(at, depth) for at, depth, _ in rows] for name, rows in self.samples.items()}
        rates = {
            name: [(b[0], (b[2] - a[2]) / (b[0] - a[0])) for a, b in zip(rows, rows[1:])] for name, rows in self.samples.items()
        }
        end_s = max((rows[-1][0] for rows in self.samples.values() if rows), default=1)
        charts = [("deepest queue, packets", depths), ("packets marked per second", rates)]
        body = [self.chart(title, lines, end_s, GAP + i * (HEIGHT + GAP)) for i, (title, lines) in enumerate(charts)]
        size = f'width="{LEFT + WIDTH + GAP}" height="{len(charts) * (HEIGHT + GAP) + 2 * GAP}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">' \
               f'<rect width="100%" height="100%" fill="white"/>{"".join(body)}</svg>\n'

    def chart(self, title, lines, end_s, top):
        most = max((value for points in lines.values() for _, value in points), default=0) or 1
        x = lambda at: LEFT + at / end_s * WIDTH
        y = lambda value: top + HEIGHT - value / most * HEIGHT
        parts = [f'<text x="{LEFT}" y="{top - 10}">{title}</text>',
                 f'<path d="M{LEFT} {top}V{top + HEIGHT}H{LEFT + WIDTH}" fill="none" stroke="#444"/>',
                 f'<text x="{LEFT - 8}" y="{top + 5}" text-anchor="end">{most:.3g}</text>',
                 f'<text x="{LEFT - 8}" y="{top + HEIGHT}" text-anchor="end">0</text>',
                 f'<text x="{LEFT + WIDTH}" y="{top + HEIGHT + 18}" text-anchor="end">{end_s:.1f} s</text>']
        if self.changed_s is not None:
            at = x(self.changed_s)
            parts.append(f'<path d="M{at:.0f} {top}V{top + HEIGHT}" stroke="#999" stroke-dasharray="4"/>'
                         f'<text x="{at + 4:.0f}" y="{top + 14}" fill="#666">{" ".join(self.changes)}</text>')
        for i, (name, points) in enumerate(lines.items()):
            colour = COLOURS[i % len(COLOURS)]
            path = "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in points)
            parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>' if path else "")
            parts.append(f'<text x="{LEFT + WIDTH - 30 * (len(lines) - i)}" y="{top - 10}" fill="{colour}">{name}</text>')
        return "".join(parts)

// A chart of the last ten minutes, with changes as vertical lines. Drawn by uPlot.
import { make, write } from "/dom.js";

const SPAN_S = 600;
const LEAST_S = 60;
const HEIGHT = 190;
/** Dash patterns, so that lines differ in more than their colours. */
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [4, 4], [12, 5], [1, 4], [6, 2, 2, 2]];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Range of the time axis: up to ten minutes. */
function shown(first, last) {
  const now = last ?? Date.now() / 1000;
  return [Math.max(now - SPAN_S, Math.min(first ?? now, now - LEAST_S)), now];
}

/** A time of day in the viewer's time zone; with seconds if the ticks are less than a minute apart. */
const clock = (t, step) => new Date(t * 1000).toTimeString().slice(0, step < 60 ? 8 : 5);

export class Chart {
  /** `id` is the element's ID, `lines` are `{ label, colour, dash }`, `format` formats a value. */
  constructor(id, title, lines, format) {
    this.lines = lines;
    this.format = format;
    this.changes = [];
    this.canvas = make("div", { class: "canvas", role: "img" });
    this.values = lines.map(() => make("output", {}, "–"));
    const legend = lines.map((line, at) => {
      const swatch = make("span", { class: `swatch c-${line.colour} d-${line.dash ?? 0}`, "aria-hidden": "true" });
      return make("li", {}, swatch, make("span", {}, line.label), " ", this.values[at]);
    });
    this.element = make("figure", { id, class: "chart" },
      make("figcaption", {}, make("h2", {}, title)), make("ul", { class: "legend" }, ...legend), this.canvas);
    this.title = title;
    this.element.chart = this;
  }

  /** Creates the plot. The element must be in the document. */
  begin() {
    const axis = (more) => ({
      stroke: () => colour("dim"), grid: { stroke: () => colour("grid"), width: 1 }, ticks: { show: false },
      font: "12px system-ui, sans-serif", ...more,
    });
    const options = {
      width: this.width(), height: HEIGHT, legend: { show: false }, padding: [8, 26, 0, 0],
      cursor: { sync: { key: "dcqcn" }, y: false, drag: { setScale: false, x: false, y: false }, points: { size: 6 } },
      scales: {
        x: { time: true, range: (_, first, last) => shown(first, last) },
        y: { range: (_, __, high) => [0, high > 0 ? high * 1.08 : 1] },
      },
      axes: [
        axis({ size: 28, space: 70, values: (_, ticks, __, ___, step) => ticks.map((t) => clock(t, step)) }),
        axis({ size: 64, values: (_, ticks) => ticks.map((value) => this.format(value)) }),
      ],
      series: [{}, ...this.lines.map((line) => ({
        label: line.label, stroke: () => colour(line.colour), width: 1.5, dash: DASHES[line.dash ?? 0],
        points: { show: false }, spanGaps: false,
      }))],
      hooks: { draw: [(plot) => this.marks(plot)], setCursor: [(plot) => this.tell(plot.cursor.idx)] },
    };
    this.plot = new uPlot(options, [[], ...this.lines.map(() => [])], this.canvas);
    this.watch = new ResizeObserver(() => {
      if (this.width() !== this.plot.width && this.width() > 0) this.plot.setSize({ width: this.width(), height: HEIGHT });
    });
    this.watch.observe(this.canvas);
  }

  width() {
    return Math.floor(this.canvas.clientWidth);
  }

  /** Draws `data`, whose first column contains the times. */
  draw(data, changes) {
    this.changes = changes;
    this.plot.setData(data);
    this.tell(null);
  }

  /** Shows the values at a point, or the last ones, as text. */
  tell(index) {
    const data = this.plot.data;
    const at = index ?? data[0].length - 1;
    const texts = this.lines.map((_, line) => this.format(data[line + 1]?.[at]));
    texts.forEach((text, line) => write(this.values[line], text));
    if (index === null) {
      const spoken = this.lines.map((line, at) => `${line.label} ${texts[at]}`).join(", ");
      this.canvas.setAttribute("aria-label", `${this.title}, last ten minutes; now ${spoken || "no data"}`);
    }
  }

  /** Draws vertical lines at the times of changes. */
  marks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("change");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const t of this.changes) {
      const x = Math.round(plot.valToPos(t, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /** Redraws with the current colour scheme. */
  paint() {
    this.plot.redraw(false, true);
  }

  end() {
    this.watch?.disconnect();
    this.plot?.destroy();
  }
}

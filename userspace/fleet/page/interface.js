// View of an interface: queues, marks, CNPs, pauses and busiest QPs over the last ten minutes, and parameters.
import { Chart } from "/chart.js";
import { NO_DATA, Rows, bits, bytes, figure, hex, make, perSecond, write } from "/dom.js";
import { Figures } from "/figures.js";
import { Changes } from "/overview.js";
import { Parameters } from "/parameters.js";

const LINES = ["one", "two", "three", "four", "five", "six", "seven", "eight"];

/** Queues that had a backlog, or else the first queue. */
function depths(values) {
  const all = Object.keys(values).filter((key) => key.startsWith("depth."));
  const used = all.filter((key) => values[key].some((depth) => depth > 0));
  return used.length > 0 ? used : all.slice(0, 1);
}

export class Interface {
  constructor(name, app) {
    this.name = name;
    this.figures = new Figures();
    this.charts = new Map();
    this.at = [];
    this.holder = make("div", { class: "charts" });
    this.busiest = new Rows("Busiest queue pairs (QPs)", [
      { title: "Destination", value: (qp) => `${qp.address} ${hex(qp.qpn)}` },
      { title: "State", value: (qp) => qp.state },
      { title: "Current rate", class: "number", value: (qp) => bits(qp.rate_bps) },
      { title: "Target rate", class: "number", value: (qp) => bits(qp.target_bps) },
      { title: "Throughput", class: "number", value: (qp) => bits(qp.throughput_bps) },
      { title: "CNPs", class: "number", value: (qp) => figure(qp.cnps_handled) },
    ]);
    this.state = make("p", { id: "state" });
    this.none = make("p", { class: "dim" }, NO_DATA);
    this.changes = new Changes(`Changes on ${name}, latest first`);
    this.parameters = new Parameters(name, app);
    this.element = make("div", {},
      make("h1", {}, name), this.state,
      make("p", { class: "dim" }, "The last ten minutes. A vertical dashed line is a change of a parameter."),
      this.holder,
      make("h2", {}, "Busiest queue pairs (QPs)"), this.none, this.busiest.element,
      make("h2", {}, "Changes"), this.changes.element,
      this.parameters.element);
  }

  begin() {
    this.parameters.begin();
  }

  /** Shows the parts that are common to all views. */
  show(parts) {
    const attached = parts.interfaces?.some((one) => one.name === this.name);
    write(this.state, parts.interfaces ? `This host has no attached interface ${this.name}.` : NO_DATA);
    this.state.hidden = attached === true;
    const changes = parts.changes?.filter((change) => change.interface === this.name || change.interface === "");
    const at = (changes ?? []).filter((change) => change.kind !== "refused").map((change) => Date.parse(change.at) / 1000);
    this.changes.show(changes);
    if (at.join() !== this.at.join()) {
      this.at = at;
      this.parameters.load();
      this.draw();
    }
    this.parameters.show(parts);
  }

  /** Adds received metrics. */
  add(message) {
    this.figures.add(message);
    const busiest = message.busiest ?? [];
    write(this.none, message.busiest ? "No sending QPs." : `Unknown: ${message.busiest_unknown}.`);
    this.none.hidden = busiest.length > 0;
    this.busiest.element.hidden = busiest.length === 0;
    this.busiest.show(busiest, (qp) => `${qp.address} ${qp.qpn}`);
    this.draw();
  }

  /** Charts for the available data. */
  wanted() {
    const { values, qps } = this.figures;
    const charts = [];
    for (const key of depths(values)) {
      const tc = key.slice("depth.".length);
      charts.push({
        id: `depth-${tc}`, title: `Queue of class ${tc}`, format: bytes, data: [key, `kmin.${tc}`, `kmax.${tc}`],
        lines: [
          { label: "depth", colour: "one" }, { label: "Kmin", colour: "three", dash: 1 }, { label: "Kmax", colour: "two", dash: 2 },
        ],
      });
    }
    charts.push({
      id: "marks", title: "Marks and CNPs", format: perSecond, data: ["marks", "cnps_sent", "cnps_handled"],
      lines: [
        { label: "marks", colour: "one" }, { label: "CNPs sent", colour: "two", dash: 1 },
        { label: "CNPs handled", colour: "three", dash: 2 },
      ],
    });
    charts.push({
      id: "pauses", title: "Pauses and drops", format: perSecond, data: ["pauses_received", "pauses_sent", "drops"],
      lines: [
        { label: "pauses received", colour: "one" }, { label: "pauses sent", colour: "two", dash: 1 },
        { label: "drops", colour: "three", dash: 2 },
      ],
    });
    charts.push({
      id: "rates", title: "Rates of the busiest QPs", format: bits, data: qps.map((qp) => qp.rate_bps),
      lines: qps.map((qp, at) => ({ label: `${qp.address} ${hex(qp.qpn)}`, colour: LINES[at], dash: at })),
    });
    return charts;
  }

  draw() {
    const { t, values } = this.figures;
    if (t.length === 0) return;
    const wanted = this.wanted();
    const same = (chart, want) => chart && chart.lines.map((line) => line.label).join() === want.lines.map((line) => line.label).join();
    for (const [id, chart] of this.charts) {
      if (!wanted.some((want) => want.id === id)) {
        chart.end();
        chart.element.remove();
        this.charts.delete(id);
      }
    }
    wanted.forEach((want, at) => {
      let chart = this.charts.get(want.id);
      if (!same(chart, want)) {
        const made = new Chart(want.id, want.title, want.lines, want.format);
        if (chart) {
          chart.end();
          chart.element.replaceWith(made.element);
        } else this.holder.insertBefore(made.element, this.holder.children[at] ?? null);
        made.begin();
        this.charts.set(want.id, made);
        chart = made;
      }
      chart.draw([t, ...want.data.map((data) => (typeof data === "string" ? values[data] : data))], this.at);
    });
  }

  paint() {
    for (const chart of this.charts.values()) chart.paint();
  }

  end() {
    for (const chart of this.charts.values()) chart.end();
  }
}

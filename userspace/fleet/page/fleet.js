// Views of the fleet (rollout, hosts and versions), and of one of its hosts over the last ten minutes.
import { Chart } from "/chart.js";
import { NO_DATA, Rows, figure, make, write } from "/dom.js";
import { Figures } from "/figures.js";

const number = (title, value) => ({ title, class: "number", value });
const ofAMillion = (value) => (value === null || value === undefined ? "–" : `${figure(value)}/M`);
const percent = (value) => (value === null || value === undefined ? "–" : `${figure(value)} %`);

/** State of a host as text, as in `dcqcn-fleet status`. */
export function state(host) {
  const failing = host.failing.join("; ");
  if (!host.is_there) return failing ? `away: ${failing}` : "away";
  if (host.refused) return `rejects: ${host.refused}`;
  if (failing) return failing;
  if (host.applying !== null) return `applying version ${host.applying}`;
  return host.interfaces.length > 0 ? "healthy" : "manages no interface";
}

function condition(host) {
  if (!host.is_there) return "away";
  if (host.refused || host.failing.length > 0) return "failing";
  return host.interfaces.length > 0 ? "healthy" : "idle";
}

/** Numbers of hosts as text. */
function counts(hosts) {
  const number = (wanted) => hosts.filter((host) => condition(host) === wanted).length;
  const idle = number("idle") === 0 ? "" : `, ${number("idle")} without interfaces`;
  const all = `${hosts.length} ${hosts.length === 1 ? "host" : "hosts"}`;
  return `${all}, ${number("healthy")} healthy, ${number("failing")} failing, ${number("away")} away${idle}.`;
}

export class Fleet {
  constructor(app) {
    this.app = app;
    const rate = (name) => (host) => figure(host.rates?.[name]);
    this.hosts = new Rows("Hosts", [
      {
        title: "Host",
        value: (host) => make("a", { href: `#/host/${encodeURIComponent(host.host)}` }, host.host),
        is: (host) => host.host,
      },
      { title: "Group", value: (host) => host.group ?? "–" },
      number("Wanted", (host) => String(host.wanted ?? "–")),
      number("Has", (host) => String(host.has ?? "–")),
      { title: "State", class: "text", value: state },
      number("Marks/M", rate("marks")),
      number("CNPs/M", rate("cnps")),
      number("Drops/M", rate("drops")),
      number("RDMA errors/M", rate("rdma_errors")),
      number("Queue, % of Kmax", rate("queue")),
    ]);
    const why = (version) => version.why || (version.rollback_of === null ? "" : `rollback to version ${version.rollback_of}`);
    this.versions = new Rows("Versions, latest first", [
      { title: "Version", value: (version) => String(version.version) },
      { title: "When", value: (version) => new Date(version.at).toLocaleString("en-GB", { hour12: false }) },
      { title: "Author", value: (version) => version.by },
      { title: "Reason", class: "text", value: why },
      { title: "Outcome", class: "text", value: (version) => version.outcome },
    ]);
    this.counts = make("p", { id: "counts" });
    this.status = make("p", { id: "rollout" });
    this.bar = make("progress", { "aria-label": "Hosts changed", max: 1 });
    this.lines = make("ol", { class: "lines", tabindex: "0", "aria-label": "Events" });
    const button = (text, what, style) =>
      make("button", { type: "button", id: what, class: style, onclick: () => this.tell(what) }, text);
    this.pause = button("Pause", "pause", "other");
    this.resume = button("Resume", "resume", "");
    this.abort = button("Abort", "abort", "other");
    this.buttons = make("div", { class: "buttons" }, this.pause, this.resume, this.abort);
    this.element = make("div", {},
      make("h1", {}, "Fleet"), this.counts,
      make("h2", {}, "Rollout"), this.status, this.bar, this.buttons, this.lines,
      make("h2", {}, "Hosts"), this.hosts.element,
      make("h2", {}, "Versions"), this.versions.element);
  }

  begin() {}

  async tell(what) {
    const token = await this.app.showToken();
    if (!token) return;
    const body = what === "abort" ? { what, why: "requested on the page" } : { what };
    const refused = await this.app.post("/rollout", body, token);
    this.app.say(refused ?? { pause: "Rollout paused.", resume: "Rollout resumed.", abort: "Rolling back." }[what]);
  }

  show(parts) {
    const { hosts = [], rollout = null } = parts.fleet ?? {};
    const status = rollout ? `Version ${rollout.version}, by ${rollout.by}: ${rollout.status}` : "No rollout yet.";
    write(this.counts, parts.fleet ? counts(hosts) : NO_DATA);
    write(this.status, parts.fleet ? status : NO_DATA);
    const goes = rollout !== null && !rollout.is_over;
    this.bar.hidden = !goes;
    const changed = hosts.filter((host) => rollout !== null && host.has === rollout.version).length;
    this.bar.value = hosts.length === 0 ? 0 : changed / hosts.length;
    this.buttons.hidden = !(goes && parts.writable);
    this.pause.hidden = rollout?.is_paused ?? false;
    this.resume.hidden = !this.pause.hidden;
    const lines = rollout?.lines ?? [];
    if (this.lines.childElementCount !== lines.length || this.lines.lastChild?.textContent !== lines.at(-1)) {
      this.lines.replaceChildren(...lines.map((line) => make("li", {}, line)));
    }
    this.lines.hidden = lines.length === 0;
    this.hosts.show(hosts, (host) => host.host);
    this.versions.show([...(parts.versions ?? [])].reverse(), (version) => String(version.version));
  }

  end() {}
}

const CHARTS = [
  { id: "host-marks", title: "Marked packets and CNPs, per million packets", format: ofAMillion, keys: ["marks", "cnps"] },
  { id: "host-errors", title: "Drops and RDMA errors, per million packets", format: ofAMillion, keys: ["drops", "rdma_errors"] },
  { id: "host-queue", title: "Deepest queue, in percent of its Kmax", format: percent, keys: ["queue"] },
];

/** A host of the fleet, as reported by its agent. Each value covers the preceding minute. */
export class Host {
  constructor(name) {
    this.name = name;
    this.figures = new Figures();
    this.state = make("p", { id: "state" });
    const colours = ["one", "two"];
    this.charts = CHARTS.map(({ id, title, format, keys }) => {
      const lines = keys.map((key, at) => ({ label: key.replace("_", " "), colour: colours[at], dash: at }));
      return new Chart(id, title, lines, format);
    });
    this.element = make("div", {},
      make("h1", {}, name), this.state,
      make("p", { class: "dim" }, "Reports of the host; each value covers the preceding minute. A vertical dashed line is a version."),
      make("div", { class: "charts" }, ...this.charts.map((chart) => chart.element)));
    this.at = [];
  }

  begin() {
    for (const chart of this.charts) chart.begin();
  }

  show(parts) {
    const host = (parts.fleet?.hosts ?? []).find((one) => one.host === this.name);
    if (host) {
      const has = `version ${host.has ?? "–"}; interfaces ${host.interfaces.join(", ") || "–"}`;
      write(this.state, `${state(host)}; group ${host.group ?? "none"}, ${has}`);
    } else write(this.state, parts.fleet ? `The fleet has no host ${this.name}.` : NO_DATA);
    this.at = (parts.versions ?? []).map((version) => Date.parse(version.at) / 1000);
  }

  add(message) {
    this.figures.add(message);
    const { t, values } = this.figures;
    if (t.length === 0) return;
    CHARTS.forEach(({ keys }, at) => {
      this.charts[at].draw([t, ...keys.map((key) => values[key] ?? t.map(() => null))], this.at);
    });
  }

  paint() {
    for (const chart of this.charts) chart.paint();
  }

  end() {
    for (const chart of this.charts) chart.end();
  }
}

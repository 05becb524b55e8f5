// View of this host: interfaces, and changes of parameters.
import { NO_DATA, Rows, bits, figure, make, perSecond, write } from "/dom.js";

const number = (title, value) => ({ title, class: "number", value });

const when = (at) => new Date(at).toLocaleString("en-GB", { hour12: false });

/** Description of a change. */
export function words(change) {
  if (change.kind === "refused") return `rejected: ${change.new}`;
  if (change.old !== "") return `${change.what}: ${change.old} → ${change.new}${change.kind === "changed" ? "" : `, ${change.kind}`}`;
  return `${change.what || "the host's own file"} ${change.kind}${change.new ? `: ${change.new}` : ""}`;
}

/** Table of changes, latest first. */
export class Changes {
  constructor(caption) {
    this.rows = new Rows(caption, [
      { title: "When", value: (change) => when(change.at) },
      { title: "Interface", value: (change) => change.interface || "this host" },
      { title: "Change", class: "text", value: words },
      { title: "Author", class: "text", value: (change) => change.by },
    ]);
    this.none = make("p", { class: "dim" });
    this.element = make("div", {}, this.none, this.rows.element);
  }

  /** Shows changes; undefined before the first data. */
  show(known) {
    const changes = known ?? [];
    write(this.none, known ? "No changes yet." : NO_DATA);
    this.none.hidden = changes.length > 0;
    this.rows.element.hidden = changes.length === 0;
    const latest = changes.slice(-50).reverse();
    this.rows.show(latest, (change) => JSON.stringify(change));
  }
}

export class Overview {
  constructor() {
    this.rows = new Rows("Interfaces", [
      {
        title: "Interface",
        value: (row) => make("a", { href: `#/interface/${encodeURIComponent(row.name)}` }, row.name),
        is: (row) => row.name,
      },
      { title: "Role", value: (row) => row.role },
      number("Flows", (row) => figure(row.flows)),
      number("Packets", (row) => perSecond(row.packets_per_s)),
      number("Queue, % of Kmax", (row) => figure(row.queue_percent)),
      number("Marks", (row) => perSecond(row.marks_per_s)),
      number("CNPs sent", (row) => perSecond(row.cnps_sent_per_s)),
      number("CNPs handled", (row) => perSecond(row.cnps_handled_per_s)),
      number("Pauses", (row) => perSecond(row.pauses_per_s)),
      number("Drops", (row) => perSecond(row.drops_per_s)),
      number("Line rate", (row) => (row.line_rate_bps ? bits(row.line_rate_bps) : "–")),
    ]);
    this.none = make("p", { class: "dim" });
    this.failing = make("ul", { class: "failing" });
    this.changes = new Changes("Changes of parameters, latest first");
    this.element = make("div", {},
      make("h1", {}, "Interfaces"), this.none, this.rows.element, this.failing,
      make("h2", {}, "Changes"), this.changes.element);
  }

  begin() {}

  show(parts) {
    const interfaces = parts.interfaces ?? [];
    write(this.none, parts.interfaces ? "No interface is attached." : NO_DATA);
    this.none.hidden = interfaces.length > 0;
    this.rows.element.hidden = interfaces.length === 0;
    this.rows.show(interfaces, (row) => row.name);
    this.failing.replaceChildren(...(parts.failing ?? []).map((one) => make("li", {}, `${one.interface}: ${one.error}`)));
    this.changes.show(parts.changes);
  }

  end() {}
}

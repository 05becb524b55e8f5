// Helpers for elements and formatted values. Strings are only inserted as text, never as HTML.

/** Creates an element with properties and children: texts, elements or null. */
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key in element && typeof value !== "string") element[key] = value;
    else element.setAttribute(key === "class" ? "class" : key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Text before the first data, also while the daemon or etcd cannot be reached. */
export const NO_DATA = "Unknown: no data yet.";

/** Sets the text of an element if it differs. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table whose rows are identified by a key, so that unchanged cells are not touched. */
export class Rows {
  constructor(caption, columns) {
    this.columns = columns;
    this.body = make("tbody");
    this.rows = new Map();
    const head = columns.map((column) => make("th", { scope: "col", class: column.class ?? "" }, column.title));
    const table = make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...head)), this.body);
    // Wide tables scroll, also by keyboard.
    this.element = make("div", { class: "wide", role: "region", tabindex: "0", "aria-label": caption }, table);
  }

  /** Shows one row per item. */
  show(items, key) {
    const seen = new Set();
    items.forEach((item, index) => {
      const name = key(item);
      seen.add(name);
      let row = this.rows.get(name);
      if (!row) {
        const cells = this.columns.map((column, at) =>
          make(at === 0 ? "th" : "td", at === 0 ? { scope: "row" } : { class: column.class ?? "" }));
        row = { element: make("tr", {}, ...cells), cells };
        this.rows.set(name, row);
      }
      this.columns.forEach((column, at) => {
        const value = column.value(item);
        const cell = row.cells[at];
        if (value instanceof Node) {
          if (cell.dataset.is !== column.is(item)) {
            cell.dataset.is = column.is(item);
            cell.replaceChildren(value);
          }
        } else write(cell, value);
      });
      if (this.body.children[index] !== row.element) this.body.insertBefore(row.element, this.body.children[index] ?? null);
    });
    for (const [name, row] of this.rows) {
      if (!seen.has(name)) {
        row.element.remove();
        this.rows.delete(name);
      }
    }
  }
}

const STEPS = ["", "K", "M", "G", "T", "P"];

/** Formats a number with a decimal prefix, for example 1.25M. */
export function figure(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  let step = 0;
  while (Math.abs(value) >= 1000 && step < STEPS.length - 1) {
    value /= 1000;
    step += 1;
  }
  const places = step === 0 && Number.isInteger(value) ? 0 : Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
  const text = value.toFixed(places);
  return (text.includes(".") ? text.replace(/\.?0+$/, "") : text) + STEPS[step];
}

export const bytes = (value) => (value === null || value === undefined ? "–" : `${figure(value)}B`);
export const bits = (value) => (value === null || value === undefined ? "–" : `${figure(value).replace("K", "k")}bit/s`);
export const perSecond = (value) => (value === null || value === undefined ? "–" : `${figure(value)}/s`);
export const hex = (qpn) => `0x${qpn.toString(16)}`;

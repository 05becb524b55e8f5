// Parameters of an interface with their descriptions, changeable where allowed.
import { make, write } from "/dom.js";

const GROUPS = { wred: "Marking (CP)", np: "CNPs (NP)", rp: "Rates and pacing (RP)", link: "Link and PFC" };
/** Confirmation time of a change, in seconds. */
const WITHIN_S = 60;

export class Parameters {
  constructor(name, app) {
    this.name = name;
    this.app = app;
    this.rows = new Map();
    this.filter = make("input", { type: "search", id: "filter", oninput: () => this.sift() });
    this.only = make("input", { type: "checkbox", id: "only", onchange: () => this.sift() });
    this.body = make("div", { class: "groups" });
    this.none = make("p", { class: "dim", hidden: true }, "No matching parameter.");
    this.dialog = make("dialog", { "aria-labelledby": "change-title" });
    this.element = make("section", { "aria-labelledby": "parameters" },
      make("h2", { id: "parameters" }, "Parameters"),
      make("div", { class: "sift" },
        make("label", { for: "filter" }, "Find"), this.filter,
        this.only, make("label", { for: "only" }, "only those that differ from their default")),
      this.none, this.body, this.dialog);
  }

  begin() {
    this.load();
  }

  /** Requests the values, and updates those that changed. */
  async load() {
    const answer = await fetch(`/parameters/${encodeURIComponent(this.name)}`).catch(() => null);
    if (!answer?.ok) return;
    const parameters = await answer.json();
    if (this.rows.size === 0) this.build(parameters);
    for (const parameter of parameters) this.row(parameter);
    this.sift();
  }

  build(parameters) {
    for (const [group, title] of Object.entries(GROUPS)) {
      const rows = parameters.filter((parameter) => parameter.group === group).map((parameter) => {
        const value = make("span", { class: "value" });
        const change = make("button", { type: "button", class: "small", hidden: true, onclick: () => this.ask(parameter.key) }, "Change");
        change.setAttribute("aria-label", `Change ${parameter.key}`);
        const meaning = [make("p", {}, parameter.doc)];
        if (parameter.larger) meaning.push(make("p", {}, `Larger: ${parameter.larger}`));
        meaning.push(make("p", { class: "dim" }, `Allowed: ${parameter.allowed}. Default: ${parameter.default}.`));
        const element = make("li", { class: "parameter" },
          make("details", {}, make("summary", {}, make("code", {}, parameter.key)), ...meaning), value, change);
        this.rows.set(parameter.key, { element, value, change, parameter });
        return element;
      });
      this.body.append(make("details", { class: "group", open: group === "wred" },
        make("summary", {}, make("h3", {}, title)), make("ul", {}, ...rows)));
    }
  }

  row(parameter) {
    const row = this.rows.get(parameter.key);
    if (!row) return;
    row.parameter = parameter;
    write(row.value, parameter.text);
    row.element.classList.toggle("differs", parameter.text !== parameter.default);
  }

  /** Applies the search and the filter. */
  sift() {
    const word = this.filter.value.trim().toLowerCase();
    const looksFor = word !== "" || this.only.checked;
    let found = 0;
    for (const { element, parameter } of this.rows.values()) {
      const text = `${parameter.key} ${parameter.doc}`.toLowerCase();
      const isIt = (word === "" || text.includes(word)) && (!this.only.checked || parameter.text !== parameter.default);
      element.hidden = !isIt;
      found += isIt ? 1 : 0;
    }
    for (const group of this.body.children) {
      const isEmpty = !group.querySelector("li:not([hidden])");
      group.hidden = looksFor && isEmpty;
      if (looksFor) group.open = true;
    }
    this.none.hidden = found > 0 || this.rows.size === 0;
  }

  show(parts) {
    for (const { change, parameter } of this.rows.values()) change.hidden = !(parts.writable && parameter.bounds !== null);
  }

  /** Prompts for a new value of a parameter. */
  ask(key) {
    const { parameter } = this.rows.get(key);
    const value = make("input", { id: "change-value", type: "text", required: true, value: parameter.text, autocomplete: "off" });
    const token = make("input", { id: "change-token", type: "password", required: true, autocomplete: "off" });
    token.value = this.app.token;
    const by = make("input", { id: "change-by", type: "text", maxlength: "100", autocomplete: "off" });
    by.value = this.app.by;
    // The server rejects the change if another override is active by then.
    const over = this.app.held()?.name ?? "";
    const wrong = make("p", { class: "wrong", role: "alert" });
    const change = make("button", { type: "submit" }, "Change");
    const form = make("form", {
      method: "dialog",
      onsubmit: async (event) => {
        event.preventDefault();
        change.disabled = true;
        write(wrong, "");
        this.app.by = by.value.trim();
        const asked = { interface: this.name, key, value: value.value.trim(), within_s: WITHIN_S, over, by: this.app.by };
        const refused = await this.app.post("/change", asked, token.value);
        change.disabled = false;
        if (refused) write(wrong, refused);
        else {
          this.dialog.close();
          this.app.say(`${key} is now ${asked.value}. It reverts unless kept within ${WITHIN_S} seconds.`);
          this.load();
        }
      },
    },
    make("h2", { id: "change-title" }, `Change ${key}`),
    make("p", {}, parameter.doc),
    make("p", { class: "dim" }, `Current value: ${parameter.text}. This host allows ${parameter.bounds}.`),
    make("label", { for: "change-value" }, "New value"), value,
    make("label", { for: "change-token" }, "Token"), token,
    make("label", { for: "change-by" }, "Your name, for the log"), by,
    make("p", { class: "dim" }, `The change reverts automatically unless kept within ${WITHIN_S} seconds.`),
    wrong,
    make("div", { class: "buttons" }, change, make("button", { type: "button", class: "other", onclick: () => this.dialog.close() }, "Cancel")));
    this.dialog.replaceChildren(form);
    this.dialog.showModal();
    value.focus();
    value.select();
  }
}

// Entry point: selects the view by the address, and receives events from the server.
import { make, write } from "/dom.js";
import { Fleet, Host } from "/fleet.js";
import { Interface } from "/interface.js";
import { Overview } from "/overview.js";

const element = (id) => document.getElementById(id);
/** Pause before reconnecting after the server rejected a connection, in milliseconds. */
const REST = 3000;

const parts = {};
let view = null;
let stream = null;
let again = null;

/** Services of the page for its views. */
const app = {
  token: "",
  by: "",
  /** The daemon's override over its host's own file. */
  held: () => parts.held,
  say(text) {
    write(element("said"), text);
  },
  /** Returns the last accepted token, or prompts for one. */
  async showToken() {
    return this.token || askToken();
  },
  /** Requests a change; returns the reason of a rejection, or null. */
  async post(path, body, token) {
    const headers = { "content-type": "application/json", "x-dcqcn-token": token };
    const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }).catch(() => null);
    if (!answer) return "dcqcn-fleet serve does not respond";
    if (answer.status === 401) this.token = "";
    if (!answer.ok) return answer.text();
    this.token = token;
    return null;
  },
};

/** The view for an address, its event stream and its title. */
function viewOf(hash) {
  const [, kind, name] = hash.match(/^#\/(\w+)\/(.+)$/) ?? [];
  if (kind === "interface") {
    const known = decodeURIComponent(name);
    return { view: new Interface(known, app), events: `/events/interface/${encodeURIComponent(known)}`, title: known };
  }
  if (kind === "host") {
    const known = decodeURIComponent(name);
    return { view: new Host(known), events: `/events/host/${encodeURIComponent(known)}`, title: known };
  }
  if (hash === "#/fleet") return { view: new Fleet(app), events: "/events", title: "Fleet" };
  return { view: new Overview(), events: "/events", title: "Interfaces" };
}

function open() {
  clearTimeout(again);
  stream?.close();
  view?.end();
  const hash = location.hash;
  const next = viewOf(hash);
  view = next.view;
  element("main").replaceChildren(view.element);
  view.begin();
  view.show(parts);
  document.title = parts.host ? `${next.title} – ${parts.host} – dcqcn` : `${next.title} – dcqcn`;
  places();
  listen(next.events);
}

function listen(events) {
  stream = new EventSource(events);
  stream.addEventListener("overview", (event) => {
    Object.assign(parts, JSON.parse(event.data));
    shared();
    view.show(parts);
  });
  stream.addEventListener("figures", (event) => view.add?.(JSON.parse(event.data)));
  stream.onopen = link;
  stream.onerror = () => {
    link();
    // The browser reconnects automatically unless the server rejected the connection.
    if (stream.readyState === EventSource.CLOSED) again = setTimeout(() => listen(events), REST);
  };
}

/** Shows whether the view receives current data. */
function link() {
  const ofFleet = /^#\/(fleet|host\/)/.test(location.hash);
  const current = ofFleet ? "fleet" in parts && !parts.fleet_error : "interfaces" in parts && !parts.error;
  const text = stream?.readyState !== EventSource.OPEN ? "not connected" : current ? "live" : "no data";
  write(element("link"), text);
}

/** Shows the parts above every view. */
function shared() {
  link();
  write(element("host"), parts.host ?? "");
  const trouble = element("trouble");
  const stuck = parts.status?.stuck ? `the daemon is stalled: ${parts.status.stuck}` : "";
  const error = [parts.error, parts.fleet_error, stuck].filter(Boolean).join("; ");
  write(trouble, error);
  trouble.hidden = error === "";
  places();
  trial(parts.held);
}

/** Shows links to all views, with the current one marked. */
function places() {
  const links = [{ href: "#/", text: "This host" }];
  if ("fleet" in parts || parts.fleet_error) links.unshift({ href: "#/fleet", text: "Fleet" });
  for (const { name } of parts.interfaces ?? []) links.push({ href: `#/interface/${encodeURIComponent(name)}`, text: name });
  const here = location.hash === "" ? "#/" : location.hash;
  const list = element("places");
  const wanted = links.slice(0, 40);
  const is = wanted.map((link) => link.href).join() + here;
  if (list.dataset.is === is) return;
  list.dataset.is = is;
  list.replaceChildren(...wanted.map((link) => {
    const anchor = make("a", { href: link.href }, link.text);
    if (link.href === here) anchor.setAttribute("aria-current", "page");
    return make("li", {}, anchor);
  }));
}

/** Shows a change that waits for confirmation. */
function trial(held) {
  const section = element("trial");
  const waits = held && held.confirm_within_s !== null;
  section.hidden = !waits;
  if (!waits) {
    section.dataset.is = "";
    section.replaceChildren();
    return;
  }
  if (section.dataset.is !== held.name) {
    section.dataset.is = held.name;
    const settle = async (path, done) => {
      const token = await app.showToken();
      if (!token) return;
      const refused = await app.post(path, { name: held.name }, token);
      app.say(refused ?? done);
    };
    const buttons = parts.writable
      ? [
          make("button", { type: "button", id: "keep", onclick: () => settle("/keep", "Change kept.") }, "Keep"),
          make("button", { type: "button", id: "undo", class: "other", onclick: () => settle("/undo", "Change reverted.") }, "Undo"),
        ]
      : [];
    section.replaceChildren(make("p", {}, `${held.why || held.name} (${held.by})`),
      make("p", {}, "reverts in ", make("output", { id: "left" }), " s unless kept."), ...buttons);
  }
  write(element("left"), String(held.confirm_within_s));
}

/** Prompts for the token, which is not stored across reloads. */
function askToken() {
  return new Promise((resolve) => {
    const token = make("input", { id: "token", type: "password", required: true, autocomplete: "off" });
    const dialog = make("dialog", { "aria-label": "Token", onclose: () => { dialog.remove(); resolve(dialog.returnValue); } },
      make("form", { onsubmit: (event) => { event.preventDefault(); dialog.close(token.value); } },
        make("label", { for: "token" }, "Token"), token,
        make("div", { class: "buttons" }, make("button", { type: "submit" }, "Continue"),
          make("button", { type: "button", class: "other", onclick: () => dialog.close("") }, "Cancel"))));
    document.body.append(dialog);
    dialog.showModal();
  });
}

window.addEventListener("hashchange", open);
// The skip link must not change the address, which selects the view.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  element("main").focus();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view?.paint?.());
open();

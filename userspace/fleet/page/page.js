// What is shown by the address, and what comes from the server.
import { make, write } from "/dom.js";
import { Fleet, Host } from "/fleet.js";
import { Interface } from "/interface.js";
import { Overview } from "/overview.js";

const element = (id) => document.getElementById(id);
/** How long a connection rests that was refused, in milliseconds. */
const REST = 3000;

const parts = {};
let view = null;
let stream = null;
let again = null;

/** What views need of the page. */
const desk = {
  token: "",
  by: "",
  /** What the controller has over its host's own file. */
  held: () => parts.held,
  say(text) {
    write(element("said"), text);
  },
  /** The token: the one that was right last, or the one that is typed now. */
  async showToken() {
    return this.token || askToken();
  },
  /** Asks for a change; returns why it is refused, or null. */
  async post(path, body, token) {
    const headers = { "content-type": "application/json", "x-dcqcn-token": token };
    const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }).catch(() => null);
    if (!answer) return "dcqcn-fleet serve does not answer";
    if (answer.status === 401) this.token = "";
    if (!answer.ok) return answer.text();
    this.token = token;
    return null;
  },
};

/** The view of an address, and where its figures come from. */
function viewOf(hash) {
  const [, kind, name] = hash.match(/^#\/(\w+)\/(.+)$/) ?? [];
  if (kind === "interface") {
    const known = decodeURIComponent(name);
    return { view: new Interface(known, desk), events: `/events/interface/${encodeURIComponent(known)}`, title: known };
  }
  if (kind === "host") {
    const known = decodeURIComponent(name);
    return { view: new Host(known), events: `/events/host/${encodeURIComponent(known)}`, title: known };
  }
  if (hash === "#/fleet") return { view: new Fleet(desk), events: "/events", title: "Fleet" };
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
  stream.onopen = () => write(element("link"), "live");
  stream.onerror = () => {
    write(element("link"), "not connected");
    // A browser tries again by itself unless it was refused.
    if (stream.readyState === EventSource.CLOSED) again = setTimeout(() => listen(events), REST);
  };
}

/** What stands above every view. */
function shared() {
  write(element("host"), parts.host ?? "");
  const trouble = element("trouble");
  const stuck = parts.status?.stuck ? `The controller is stuck: ${parts.status.stuck}` : "";
  const error = [parts.error, parts.fleet_error, stuck].filter(Boolean).join("; ");
  write(trouble, error);
  trouble.hidden = error === "";
  places();
  trial(parts.held);
}

/** Links to everything there is, and which of them is shown. */
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

/** A change that waits to be kept. */
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
      const token = await desk.showToken();
      if (!token) return;
      const refused = await desk.post(path, { name: held.name }, token);
      desk.say(refused ?? done);
    };
    const buttons = parts.writable
      ? [
          make("button", { type: "button", id: "keep", onclick: () => settle("/keep", "It is kept.") }, "Keep"),
          make("button", { type: "button", id: "undo", class: "other", onclick: () => settle("/undo", "It is as it was.") }, "Undo"),
        ]
      : [];
    section.replaceChildren(make("p", {}, `${held.why || held.name} (${held.by})`),
      make("p", {}, "goes back in ", make("output", { id: "left" }), " s unless it is kept."), ...buttons);
  }
  write(element("left"), String(held.confirm_within_s));
}

/** Prompts for the token, which a reload of the page has cleared. */
function askToken() {
  return new Promise((resolve) => {
    const token = make("input", { id: "token", type: "password", required: true, autocomplete: "off" });
    const dialog = make("dialog", { "aria-label": "Token", onclose: () => { dialog.remove(); resolve(dialog.returnValue); } },
      make("form", { onsubmit: (event) => { event.preventDefault(); dialog.close(token.value); } },
        make("label", { for: "token" }, "Token"), token,
        make("div", { class: "buttons" }, make("button", { type: "submit" }, "Go on"),
          make("button", { type: "button", class: "other", onclick: () => dialog.close("") }, "Cancel"))));
    document.body.append(dialog);
    dialog.showModal();
  });
}

window.addEventListener("hashchange", open);
// The link that skips is no place.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  element("main").focus();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view?.paint?.());
open();

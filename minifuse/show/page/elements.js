/** What several views put on the page: elements, and buttons of columns and of requests. */

import { columnName } from "./columns.js";

/**
 * An element with attributes, listeners and children.
 *
 *     tag("th", { scope: "row" }, tag("button", { class: "to-request", click: () => select(r) }, "r1"))
 *
 * @param {string|object} [look] its class, or attributes by name; a function as attribute listens for that event
 * @param {...(Node|string)} children
 */
export function tag(name, look = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributesOf(look))) {
    if (typeof value === "function") made.addEventListener(key, value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** The element with an id. */
export function part(id) {
  return document.getElementById(id);
}

/** A button that does something. @param {string|object} look as of `tag` */
export function actButton(look, act, ...children) {
  return tag("button", { ...attributesOf(look), type: "button", click: act }, ...children);
}

function attributesOf(look) {
  if (typeof look !== "string") return look;
  return look ? { class: look } : {};
}

/**
 * Fills a host from the page's template of a name.
 *
 * @returns {Record<string, HTMLElement>} its parts, by their `data-part`
 */
export function fillFrom(name, host) {
  host.append(part(`${name}-template`).content.cloneNode(true));
  return Object.fromEntries([...host.querySelectorAll("[data-part]")].map((one) => [one.dataset.part, one]));
}

/** Sets the text of an element unless it is there already: a new text makes the browser lay out the page. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Puts choices into a select, each a value and a text. */
export function fillSelect(select, choices) {
  select.replaceChildren(...choices.map(([value, text]) => tag("option", { value }, text)));
}

/** A button that goes to a column. */
export function stepButton(app, model, i, text = columnName(model, i)) {
  const look = { class: "to-iteration", "data-iteration": i };
  return actButton(look, () => (model === app.other ? app.selectIn("B", i) : app.select(i)), text);
}

/** A button that selects a request, with its colour beside it. */
export function requestButton(app, model, r) {
  const mark = tag("span", { class: "request-mark", "aria-hidden": "true" });
  const button = actButton("to-request", () => app.selectRequest(Number(button.dataset.request)), mark, "");
  return renamed(button, app, model, r);
}

/** The button of another request. */
export function renamed(button, app, model, r) {
  button.dataset.request = String(r);
  button.firstChild.style.background = app.colour(r);
  button.lastChild.data = String(model.requests[r].id);
  return button;
}

/** Replaces what a host shows. The focus moves to the new button of the same class, request and iteration. */
export function refill(host, children) {
  const active = host.contains(document.activeElement) ? document.activeElement : null;
  const wanted = active && [active.className, active.dataset.request, active.dataset.iteration];
  host.replaceChildren(...children);
  if (!wanted) return;
  const same = [...host.querySelectorAll("button")].find(
    (one) => one.className === wanted[0] && one.dataset.request === wanted[1] && one.dataset.iteration === wanted[2],
  );
  same?.focus({ preventScroll: true });
}

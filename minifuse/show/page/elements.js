/** What several views put on the page: buttons of columns and of requests. */

import { columnName } from "./columns.js";

/** An element with a class and a text. */
export function tag(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A button with a text that does something. */
export function actButton(className, text, act) {
  const button = tag("button", className, text);
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}

/** Puts choices into a select, each a value and a text. */
export function fillSelect(select, choices) {
  const options = choices.map(([value, text]) => {
    const option = tag("option", "", text);
    option.value = value;
    return option;
  });
  select.replaceChildren(...options);
}

/** A button that goes to a column. */
export function stepButton(app, model, i, text = columnName(model, i)) {
  const button = actButton("to-iteration", text, () => (model === app.other ? app.selectIn("B", i) : app.select(i)));
  button.dataset.iteration = String(i);
  return button;
}

/** A button that selects a request, with its colour beside it. */
export function requestButton(app, model, r) {
  const button = actButton("to-request", undefined, () => app.selectRequest(Number(button.dataset.request)));
  const mark = tag("span", "request-mark");
  mark.setAttribute("aria-hidden", "true");
  button.append(mark, document.createTextNode(""));
  return renamed(button, app, model, r);
}

/** The button of another request. */
export function renamed(button, app, model, r) {
  button.dataset.request = String(r);
  button.firstChild.style.background = app.colour(r);
  button.lastChild.data = String(model.requests[r].id);
  return button;
}

/** Replaces what a host shows, and leaves the focus where it was: on the button that names the same. */
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

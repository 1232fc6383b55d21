/** Buttons, lists and keys: hand what the reader does to the app. */

import { columnName } from "./columns.js";
import { fillSelect, part, setText } from "./elements.js";
import { offerPictures } from "./export.js";
import { capital, seconds } from "./words.js";

const TEN = 10; // columns, with shift
const ZOOM = 1.4;
/** Buttons that find a decision in which A and B differ, each with its direction. */
const DIFFERENCES = { "first-difference": 0, "previous-difference": -1, "next-difference": 1 };
/** Keys that do what a button does. */
const BUTTON_KEYS = {
  Home: "home",
  End: "end",
  " ": "play",
  "+": "wider",
  "=": "wider",
  "-": "narrower",
  0: "fit",
  d: "theme",
  "?": "help",
  g: "tour",
  f: "first-difference",
  p: "previous-difference",
  n: "next-difference",
};

/** What each button does, by its id. */
function buttonActs(app) {
  const differences = Object.entries(DIFFERENCES).map(([id, way]) => [id, () => app.difference(way)]);
  return {
    home: () => app.select(0),
    back: () => app.select(app.position - 1),
    play: () => app.player.turn(),
    on: () => app.select(app.position + 1),
    end: () => app.select(app.positions - 1),
    narrower: () => app.zoom(1 / ZOOM),
    wider: () => app.zoom(ZOOM),
    fit: () => app.zoom(0),
    theme: () => app.theme.turn(),
    save: () => offerPictures(app, part("pictures")),
    print: () => window.print(),
    help: () => part("keys").showModal(),
    tour: () => {
      app.player.pause();
      app.tour.start();
    },
    ...Object.fromEntries(differences),
  };
}

/** Wire up the page. */
export function bindControls(app) {
  const titles = app.runs.map((model, k) => [String(k), model.run.title]);
  fillSelect(part("run-a"), titles);
  fillSelect(part("run-b"), [["", app.runs.length > 1 ? "none" : "none (one run)"], ...titles]);
  part("run-b").disabled = app.runs.length < 2;
  fillSelect(part("request"), [["", "none"], ...app.main.requests.map(({ id }, r) => [String(r), String(id)])]);
  const acts = buttonActs(app);
  for (const [id, act] of Object.entries(acts)) part(id).addEventListener("click", act);
  part("scrubber").addEventListener("input", ({ target }) => {
    app.player.pause();
    app.select(Number(target.value));
    target.value = app.position; // a stop may have held the app back
  });
  const onChange = {
    "run-a": (value) => app.setMain(app.runs[Number(value)]),
    "run-b": (value) => app.setOther(value === "" ? null : app.runs[Number(value)]),
    by: (value) => app.setBy(value),
    mode: (value) => app.setMode(value),
    request: (value) => app.selectRequest(value === "" ? null : Number(value)),
  };
  for (const [id, act] of Object.entries(onChange)) part(id).addEventListener("change", ({ target }) => act(target.value));
  document.addEventListener("keydown", (event) => pressed(app, acts, event));
}

/** Does what a key stands for, unless the focused element uses that key itself. */
function pressed(app, acts, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const { target, key } = event;
  const inText = target.matches?.("textarea, input:not([type=range], [type=checkbox], [type=radio], [type=button])");
  if (inText || (target.matches?.("select, input[type=radio]") && !["?", "Escape"].includes(key))) return;
  if ((key === " " || key === "Enter") && target.closest?.("button, summary, a, label, input[type=checkbox]")) return;
  const columns = event.shiftKey ? TEN : 1;
  const keyActs = {
    ArrowLeft: () => app.select(app.position - columns),
    ArrowRight: () => app.select(app.position + columns),
    ArrowUp: () => nextRequest(app, -1),
    ArrowDown: () => nextRequest(app, 1),
    t: () => app.setMode(app.mode === "time" ? "iterations" : "time"),
    Escape: () => app.selectRequest(null),
  };
  const act = Object.hasOwn(keyActs, key) ? keyActs[key] : Object.hasOwn(BUTTON_KEYS, key) && acts[BUTTON_KEYS[key]];
  if (!act) return;
  event.preventDefault();
  if (key.startsWith("Arrow") || key === "Home" || key === "End") app.player.pause();
  act();
}

/** The request above or below the selected one. */
function nextRequest(app, way) {
  const count = app.main.requests.length;
  const from = app.request === null ? (way > 0 ? -1 : count) : app.request;
  const to = Math.max(0, Math.min(count - 1, from + way));
  if (count) app.selectRequest(to);
}

/** Put what is selected into the controls. */
export function showControls(app) {
  const { main, other, position, positions, index } = app;
  const scrubber = part("scrubber");
  scrubber.max = String(Math.max(0, positions - 1));
  scrubber.value = String(position);
  const shown = other ? `A: ${columnName(main, index)}, B: ${columnName(other, app.indexOther)}` : capital(columnName(main, index));
  const when = other && app.by === "time" ? `as A's ends at ${seconds(main.ends[index])}` : `from ${seconds(main.starts[index])}`;
  const sentence = `${shown}, ${when} (column ${position} of ${positions - 1})`;
  scrubber.setAttribute("aria-valuetext", sentence);
  part("position").textContent = sentence;
  const values = {
    "run-a": app.runs.indexOf(main),
    "run-b": other ? app.runs.indexOf(other) : "",
    by: app.by,
    mode: app.mode,
    request: app.request ?? "",
  };
  for (const [id, value] of Object.entries(values)) part(id).value = String(value);
  for (const option of part("run-b").options) option.disabled = option.value === part("run-a").value;
  setText(part("play"), app.player.playing ? "Pause" : "Play");
  part("theme").setAttribute("aria-pressed", String(app.theme.name === "dark"));
  part("home").disabled = part("back").disabled = position === 0;
  part("on").disabled = part("end").disabled = position >= positions - 1;
  for (const [id, way] of Object.entries(DIFFERENCES)) {
    part(id).disabled = !app.pair?.difference(way, { position, b: app.indexOther });
  }
}

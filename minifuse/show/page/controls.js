/** Buttons, lists and keys: what the reader does, handed to the app. */

import { columnName } from "./columns.js";
import { fillSelect } from "./elements.js";
import { offerPictures } from "./export.js";
import { capital, seconds } from "./words.js";

const TEN = 10; // columns, with shift
const ZOOM = 1.4;

function control(id) {
  return document.getElementById(id);
}

/** Wire up the page. */
export function bindControls(app) {
  const titles = app.runs.map((model, k) => [String(k), model.run.title]);
  fillSelect(control("run-a"), titles);
  fillSelect(control("run-b"), [["", app.runs.length > 1 ? "none" : "none (one run)"], ...titles]);
  control("run-b").disabled = app.runs.length < 2;
  fillSelect(control("request"), [["", "none"], ...app.main.requests.map(({ id }, r) => [String(r), String(id)])]);
  const onClick = {
    home: () => app.select(0),
    back: () => app.select(app.position - 1),
    play: () => app.player.turn(),
    on: () => app.select(app.position + 1),
    end: () => app.select(app.positions - 1),
    narrower: () => app.zoom(1 / ZOOM),
    wider: () => app.zoom(ZOOM),
    fit: () => app.zoom(0),
    theme: () => app.theme.turn(),
    save: () => offerPictures(app, control("pictures")),
    print: () => window.print(),
    help: () => control("keys").showModal(),
    "first-difference": () => app.difference(0),
    "previous-difference": () => app.difference(-1),
    "next-difference": () => app.difference(1),
  };
  for (const [id, act] of Object.entries(onClick)) control(id).addEventListener("click", act);
  control("scrubber").addEventListener("input", ({ target }) => {
    app.player.pause();
    app.select(Number(target.value));
    target.value = app.position; // a stop may have held it
  });
  const onChange = {
    "run-a": (value) => app.setMain(app.runs[Number(value)]),
    "run-b": (value) => app.setOther(value === "" ? null : app.runs[Number(value)]),
    by: (value) => app.setBy(value),
    mode: (value) => app.setMode(value),
    request: (value) => app.selectRequest(value === "" ? null : Number(value)),
  };
  for (const [id, act] of Object.entries(onChange)) control(id).addEventListener("change", ({ target }) => act(target.value));
  document.addEventListener("keydown", (event) => pressed(app, event));
}

/** What a key does; those that mean something where the focus is are left alone. */
function pressed(app, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const { target, key } = event;
  const inText = target.matches?.("textarea, input:not([type=range], [type=checkbox], [type=radio], [type=button])");
  if (inText || (target.matches?.("select, input[type=radio]") && !["?", "Escape"].includes(key))) return;
  if ((key === " " || key === "Enter") && target.closest?.("button, summary, a, label, input[type=checkbox]")) return;
  const steps = event.shiftKey ? TEN : 1;
  const acts = {
    ArrowLeft: () => app.select(app.position - steps),
    ArrowRight: () => app.select(app.position + steps),
    ArrowUp: () => nextRequest(app, -1),
    ArrowDown: () => nextRequest(app, 1),
    Home: () => app.select(0),
    End: () => app.select(app.positions - 1),
    " ": () => app.player.turn(),
    n: () => app.difference(1),
    p: () => app.difference(-1),
    f: () => app.difference(0),
    "+": () => app.zoom(ZOOM),
    "=": () => app.zoom(ZOOM),
    "-": () => app.zoom(1 / ZOOM),
    0: () => app.zoom(0),
    t: () => app.setMode(app.mode === "time" ? "iterations" : "time"),
    d: () => app.theme.turn(),
    "?": () => control("keys").showModal(),
    Escape: () => app.selectRequest(null),
  };
  const act = Object.hasOwn(acts, key) ? acts[key] : null;
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
  const scrubber = control("scrubber");
  scrubber.max = String(Math.max(0, positions - 1));
  scrubber.value = String(position);
  const shown = other ? `A: ${columnName(main, index)}, B: ${columnName(other, app.indexOther)}` : capital(columnName(main, index));
  const when = other && app.by === "time" ? `as A's ends at ${seconds(main.ends[index])}` : `from ${seconds(main.starts[index])}`;
  const told = `${shown}, ${when} (column ${position} of ${positions - 1})`;
  scrubber.setAttribute("aria-valuetext", told);
  control("position").textContent = told;
  control("run-a").value = String(app.runs.indexOf(main));
  control("run-b").value = other ? String(app.runs.indexOf(other)) : "";
  for (const option of control("run-b").options) option.disabled = option.value === control("run-a").value;
  control("by").value = app.by;
  control("mode").value = app.mode;
  control("request").value = app.request === null ? "" : String(app.request);
  const play = control("play");
  const label = app.player.playing ? "Pause" : "Play";
  if (play.textContent !== label) play.textContent = label;
  control("theme").setAttribute("aria-pressed", String(app.theme.name === "dark"));
  control("home").disabled = control("back").disabled = position === 0;
  control("on").disabled = control("end").disabled = position >= positions - 1;
  for (const [id, way] of [["first-difference", 0], ["next-difference", 1], ["previous-difference", -1]]) {
    control(id).disabled = !app.pair?.difference(way, { position, b: app.indexOther });
  }
}

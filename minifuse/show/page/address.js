/** The address of the page: the part after # names what the page shows, and can be written by hand. */

/**
 * Reads what an address names.
 *
 *     readAddress("#run=fluid&i=12&stops=3,9").stops  // "3,9"
 *
 * @returns {Record<string, string>}
 */
export function readAddress(hash) {
  return Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));
}

const KNOWN = ["run", "b", "i", "j", "request", "by", "mode", "theme", "stops", "predict"];

/**
 * Shows what an address names. Returns a sentence for each part that cannot be shown.
 *
 * @param {Record<string, string>} asked as from `readAddress`
 */
export function applyAddress(app, asked) {
  const wrong = [];
  const titles = app.runs.map((model) => model.run.title);
  const named = (what, name) => {
    const found = app.runs[titles.indexOf(name)];
    if (!found) wrong.push(`The address names ${what} "${name}", and this page has ${titles.join(", ")}.`);
    return found;
  };
  const oneOf = (key, choices) => {
    if (!(key in asked)) return undefined;
    if (choices.includes(asked[key])) return asked[key];
    wrong.push(`The address has ${key}=${asked[key]}: give ${choices.join(" or ")}.`);
    return undefined;
  };
  for (const key of Object.keys(asked)) {
    if (!KNOWN.includes(key)) wrong.push(`The address has ${key}, which means nothing here: give ${KNOWN.join(", ")}.`);
  }
  const theme = oneOf("theme", ["light", "dark"]);
  if (theme) app.theme.choose(theme);
  app.by = oneOf("by", ["time", "token"]) ?? app.by;
  app.mode = oneOf("mode", ["iterations", "time"]) ?? app.mode;
  const main = "run" in asked ? named("the run", asked.run) : undefined;
  const other = asked.b ? named("the run", asked.b) : "b" in asked ? null : undefined;
  const alike = other && other === (main ?? app.main);
  if (alike) wrong.push(`The address names ${asked.b} as A and as B: give another run as one of them.`);
  app.setRuns(main ?? app.main, alike ? null : other === undefined ? app.other : other, 0);
  if (app.pair && app.pair.by !== app.by) app.setBy(app.by);
  if ("request" in asked) {
    const r = app.main.requests.findIndex((one) => String(one.id) === asked.request);
    if (r < 0) wrong.push(`The address names the request "${asked.request}", which this run does not have.`);
    else app.selectRequest(r);
  }
  const column = (key, what, count) => {
    const i = Number(asked[key]);
    if (/^[0-9]+$/.test(asked[key]) && i < count) return i;
    wrong.push(`The address names ${what} "${asked[key]}": give a whole number from 0 to ${count - 1}.`);
    return null;
  };
  const i = "i" in asked ? column("i", "column", app.positions) : 0;
  let j = null;
  if ("j" in asked && !app.other) wrong.push("The address names a column j of B, and no run as B: give b=, or leave j out.");
  else if ("j" in asked) j = column("j", "column j of B", app.other.length);
  if (i !== null) app.select(i, j);
  return wrong;
}

/** The address of what the app shows. */
export function addressOf(app) {
  const address = new URLSearchParams();
  address.set("run", app.main.run.title);
  if (app.other) address.set("b", app.other.run.title);
  address.set("i", String(app.position));
  if (app.beside !== null) address.set("j", String(app.beside));
  if (app.request !== null) address.set("request", String(app.main.requests[app.request].id));
  if (app.other && app.by !== "time") address.set("by", app.by);
  if (app.mode !== "iterations") address.set("mode", app.mode);
  if (app.theme.chosen) address.set("theme", app.theme.name);
  for (const key of ["stops", "predict"]) if (app.address[key]) address.set(key, app.address[key]);
  return `#${address.toString().replaceAll("%2C", ",")}`;
}

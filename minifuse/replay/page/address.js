/** The address of the page: what stands behind # names what it shows, and can be written by hand. */

/**
 * What an address says of the page.
 *
 *     readAddress("#run=fluid&i=12&stops=3,9").stops  // "3,9"
 *
 * @param {string} hash
 * @returns {Record<string, string>}
 */
export function readAddress(hash) {
  return Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));
}

const KNOWN = ["run", "b", "i", "request", "by", "mode", "theme", "stops", "predict"];

/**
 * Takes an address into the app, and tells in sentences what of it cannot be shown.
 *
 * @param {object} app
 * @param {Record<string, string>} asked as from `readAddress`
 * @returns {string[]}
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
  if (theme) app.setTheme(theme);
  app.by = oneOf("by", ["time", "token"]) ?? app.by;
  app.mode = oneOf("mode", ["iterations", "time"]) ?? app.mode;
  const main = "run" in asked ? named("the run", asked.run) : undefined;
  const other = asked.b ? named("the run", asked.b) : "b" in asked ? null : undefined;
  if (other && other === (main ?? app.main)) {
    wrong.push(`The address names ${asked.b} as A and as B: give another run as one of them.`);
    app.setRuns(main ?? app.main, null);
  } else app.setRuns(main ?? app.main, other === undefined ? app.other : other);
  if ("request" in asked) {
    const r = app.main.requests.findIndex((one) => String(one.id) === asked.request);
    if (r < 0) wrong.push(`The address names the request "${asked.request}", which this run does not have.`);
    else app.selectRequest(r);
  }
  if (!("i" in asked)) app.select(0);
  else {
    const i = Number(asked.i);
    if (Number.isInteger(i) && i >= 0 && i < app.positions) app.select(i);
    else wrong.push(`The address names iteration "${asked.i}": give a whole number from 0 to ${app.positions - 1}.`);
  }
  return wrong;
}

/** The address of what the app shows. @param {object} app @param {Record<string, string>} before @returns {string} */
export function addressOf(app, before) {
  const told = new URLSearchParams();
  told.set("run", app.main.run.title);
  if (app.other) told.set("b", app.other.run.title);
  told.set("i", String(app.position));
  if (app.request !== null) told.set("request", String(app.main.requests[app.request].id));
  if (app.other && app.by !== "time") told.set("by", app.by);
  if (app.mode !== "iterations") told.set("mode", app.mode);
  if (app.themeChosen) told.set("theme", app.theme);
  for (const key of ["stops", "predict"]) if (before[key]) told.set(key, before[key]);
  return `#${told.toString().replaceAll("%2C", ",")}`;
}

/** Light and dark: the reader's choice, or else the system's. */

/** The colours of the page, by the names that the first rule of its styles declares. */
const [{ style: DECLARED }] = document.styleSheets[0].cssRules;
const COLOURS = [...DECLARED].filter((name) => name.startsWith("--"));

/**
 * @returns {Record<string, string> & {tasks: string[], moves: Record<string, string>}} `apartSoft` is --apart-soft,
 *     tasks[2] is --task-2, moves.swap_in is --move-swap_in
 */
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const found = { tasks: [], moves: {} };
  for (const name of COLOURS) {
    const value = style.getPropertyValue(name).trim();
    const [, family, member] = /^--(task|move)-(.+)$/.exec(name) ?? [];
    if (family === "task") found.tasks[member] = value;
    else if (family === "move") found.moves[member] = value;
    else found[name.slice(2).replace(/-(\w)/g, (_, letter) => letter.toUpperCase())] = value;
  }
  return found;
}

const DARK = matchMedia("(prefers-color-scheme: dark)");

/** The theme of the page. */
export class Theme {
  /** @param {() => void} shown called when the colours have changed */
  constructor(shown) {
    this.shown = shown;
    this.chosen = false;
    this._dress((this.name = DARK.matches ? "dark" : "light"));
    DARK.addEventListener("change", ({ matches }) => {
      if (!this.chosen) this._set(matches ? "dark" : "light");
    });
  }

  /** @param {"light"|"dark"} name the reader's choice */
  choose(name) {
    this.chosen = true;
    this._set(name);
  }

  /** Choose the other theme. */
  turn() {
    this.choose(this.name === "dark" ? "light" : "dark");
  }

  /** Show the colours of a theme without choosing it, as for print. */
  wear(name) {
    this._dress(name);
    this.shown();
  }

  _set(name) {
    this.name = name;
    this.wear(name);
  }

  _dress(name) {
    document.documentElement.dataset.theme = name;
    this.palette = readPalette();
  }
}

/** Okabe and Ito's colours, which the colour-blind can distinguish, with brown instead of black. */
const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#5d3a00", "#f0e442"];

/**
 * The colour of a request. After eight they come again, lighter and darker in turn: names tell requests apart, colours
 * help to find one again.
 *
 * @returns {string} as #rrggbb
 */
export function requestColour(r) {
  const hue = HUES[r % HUES.length];
  const round = Math.floor(r / HUES.length) % 3;
  if (!round) return hue;
  const [towards, share] = round === 1 ? [255, 0.38] : [0, 0.36];
  const part = (at) => Math.round(parseInt(hue.slice(at, at + 2), 16) * (1 - share) + towards * share);
  return `#${[1, 3, 5].map((at) => part(at).toString(16).padStart(2, "0")).join("")}`;
}

/** Light and dark: what the reader chose, or else what the system has. */

import { readPalette } from "./palette.js";

const DARK = matchMedia("(prefers-color-scheme: dark)");

/** The theme of the page. */
export class Theme {
  /** @param {() => void} shown called when the page has put on other colours */
  constructor(shown) {
    this.shown = shown;
    this.chosen = false;
    this._dress((this.name = DARK.matches ? "dark" : "light"));
    DARK.addEventListener("change", ({ matches }) => {
      if (!this.chosen) this._set(matches ? "dark" : "light");
    });
  }

  /** @param {"light"|"dark"} name as the reader wants it, whatever the system has */
  choose(name) {
    this.chosen = true;
    this._set(name);
  }

  /** The other of the two. */
  turn() {
    this.choose(this.name === "dark" ? "light" : "dark");
  }

  /** Show the page in the colours of a theme, whichever is chosen: while it is printed, those of the light one. */
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

/** What the page writes apart from its pictures: notices, its address, and the text that a screen reader says. */

import { addressOf } from "./address.js";
import { part, tag } from "./elements.js";
import { sentencesOf } from "./now.js";

const ADDRESS_AFTER = 300; // milliseconds: browsers refuse to change the address more often for long
const SPOKEN_AFTER = 400;

/** Writes a while after a change, so that the picture is drawn first, and not for every frame. */
export class Announcer {
  constructor(app) {
    this.app = app;
    this.address = ""; // the last one that was written
  }

  /** Call this when something has changed. */
  announce() {
    this._notices();
    clearTimeout(this._addressTimer);
    this._addressTimer = setTimeout(() => this.writeAddress(), ADDRESS_AFTER);
    clearTimeout(this._spokenTimer);
    this._spokenTimer = setTimeout(() => this._speak(), SPOKEN_AFTER);
  }

  writeAddress() {
    this.address = addressOf(this.app);
    // The whole address: in a frame, # alone would refer to the page around it.
    const [page] = location.href.split("#");
    if (location.hash !== this.address) history.replaceState(null, "", page + this.address);
  }

  _notices() {
    const { app } = this;
    const notices = [...app.sides().map(({ model }) => model.run.notice && `${model.run.title}: ${model.run.notice}`), ...app.faults].filter(Boolean);
    const key = notices.join("\n");
    if (key === this._noticed) return;
    this._noticed = key;
    part("notices").replaceChildren(...notices.map((notice) => tag("p", "", notice)));
  }

  _speak() {
    const { main, index, request } = this.app;
    const sentences = [`${main.run.title}.`, ...sentencesOf(main, index)];
    if (request !== null) sentences.push(`${main.requests[request].id} is ${main.stateAt(index, request)}.`);
    part("live").textContent = sentences.join(" ");
  }
}

/**
 * Predict: the page stops before an iteration, asks what will be decided in it, and tells the answer and its reason.
 *
 * While a question is open nothing later can be selected, and what the lanes and charts have to tell of later columns
 * is covered.
 */

import { addressOf } from "./address.js";
import { GUTTER } from "./lanes.js";
import { NOBODY_CHOICE, QUESTION_KINDS, questionAt, stopsOf } from "./questions.js";
import { grouped } from "./words.js";

/** Stops the replay, asks, and keeps the score. */
export class Predict {
  /** @param {object} app */
  constructor(app) {
    this.app = app;
    this.host = document.getElementById("predict");
    /** @type {Question|null} */
    this.question = null;
    this.score = { right: 0, asked: 0, skipped: 0 };
    this._done = new WeakMap(); // model -> columns that were asked
    this._stops = null;
    this._veils = [];
    this._build();
    this._read();
    app.guard((from, to) => this._guard(from, to));
    app.on("change", () => this._changed());
    app.on("layout", () => this._cover());
    this._render();
  }

  /** The last column of a run of which anything may be told. @param {import("./model.js").RunModel} model */
  limitOf(model) {
    if (!this.question) return Infinity;
    const last = this.question.column - 1;
    return model === this.app.main ? last : this.app.pair ? this.app.pair.at(last).b : last;
  }

  // --- when it stops

  /** What the address asks for. */
  _read() {
    const { address } = this.app;
    this._address = address;
    this.wrong = [];
    this.on = false;
    this.kind = "any";
    this.given = null;
    if (address.predict) {
      if (Object.hasOwn(QUESTION_KINDS, address.predict)) {
        this.on = true;
        this.kind = address.predict;
      } else this.wrong.push(`The address has predict=${address.predict}: give ${Object.keys(QUESTION_KINDS).join(", ")}.`);
    }
    if (address.stops) {
      const numbers = address.stops.split(",").map((part) => part.trim());
      const good = numbers.filter((part) => /^[0-9]{1,9}$/.test(part) && Number(part) > 0);
      const bad = numbers.filter((part) => !good.includes(part));
      if (bad.length) this.wrong.push(`The address has stops=${address.stops}: give whole numbers from 1 on, as in stops=10,20,35.`);
      if (good.length) {
        this.given = [...new Set(good.map(Number))].sort((a, b) => a - b);
        this.on = true;
      }
    }
    this._stops = null;
    this._render();
  }

  /** The stops of run A, ascending. */
  stops() {
    const { main } = this.app;
    if (!this.on) return [];
    if (!this._stops || this._stops.model !== main || this._stops.kind !== this.kind) {
      const usable = (i) => i < main.length && !main.run.steps[i].wait;
      const list = this.given ? this.given.filter(usable) : stopsOf(main, this.kind);
      this._stops = { model: main, kind: this.kind, list };
    }
    return this._stops.list;
  }

  _asked() {
    const { main } = this.app;
    if (!this._done.has(main)) this._done.set(main, new Set());
    return this._done.get(main);
  }

  _guard(from, to) {
    if (this._address !== this.app.address) this._read();
    if (this.question) return Math.min(to, this.question.column - 1);
    if (to <= from) return to;
    const asked = this._asked();
    const stop = this.stops().find((i) => i > from && i <= to && !asked.has(i));
    if (stop === undefined) return to;
    this._open(stop);
    return stop - 1;
  }

  _changed() {
    if (this._address !== this.app.address) this._read();
    // Another run was chosen: what was asked of the one before is no question any more.
    if (this.question && this._model !== this.app.main) this._close();
    this._render();
    this._cover();
  }

  _open(column) {
    this._model = this.app.main;
    this.question = questionAt(this.app.main, column, this.given ? "any" : this.kind);
    this.result = null;
    document.body.classList.add("asking");
    // The position may stay what it is: then nothing else would draw.
    queueMicrotask(() => {
      this._retell();
      this._render();
      this._cover();
      this.form.querySelector("input")?.focus();
      this.host.scrollIntoView?.({ block: "nearest" });
    });
  }

  _close() {
    this.question = null;
    document.body.classList.remove("asking");
    this._retell();
    this._cover();
  }

  // --- what is answered

  /** @param {string[]} values of the choices taken */
  answer(values) {
    const { question } = this;
    if (!question) return;
    if (!values.length) {
      this.nothing.textContent = question.several ? "Nothing is chosen: choose at least one, or skip." : "Nothing is chosen: choose one, or skip.";
      this.form.querySelector("input")?.focus();
      return;
    }
    const right = question.choices.every((choice) => choice.right === values.includes(choice.value));
    this.score.asked += 1;
    if (right) this.score.right += 1;
    this._reveal({ right, values });
  }

  skip() {
    if (!this.question) return;
    this.score.skipped += 1;
    this._reveal({ right: null, values: [] });
  }

  _reveal(told) {
    const { question } = this;
    this._asked().add(question.column);
    this.result = { ...told, question };
    this._close();
    this.app.select(question.column);
    this._render();
    this.go.focus();
  }

  /** On to the next stop; to the end if there is none. */
  next() {
    this.result = null;
    this._render();
    this.app.select(this.app.positions - 1);
  }

  // --- what is shown

  _build() {
    const make = (name, className, text) => {
      const made = document.createElement(name);
      if (className) made.className = className;
      if (text !== undefined) made.textContent = text;
      return made;
    };
    const button = (text, className, act) => {
      const made = make("button", className, text);
      made.type = "button";
      made.addEventListener("click", act);
      return made;
    };
    const head = make("div", "predict-head");
    const title = make("h2", "", "Predict");
    this.tally = make("span", "predict-score");
    this.tally.setAttribute("aria-label", "Score");
    head.append(title, this.tally);
    const settings = make("p", "predict-settings");
    const label = make("label");
    this.switch = make("input", "predict-on");
    this.switch.type = "checkbox";
    this.switch.addEventListener("change", () => this._switch(this.switch.checked, this.choice.value));
    label.append(this.switch, " stop and ask before ");
    this.choice = make("select", "predict-kind");
    this.choice.setAttribute("aria-label", "What to ask about");
    this.choice.addEventListener("change", () => this._switch(true, this.choice.value));
    settings.append(label, this.choice);
    this.note = make("p", "quiet predict-note");
    this.form = make("form", "predict-question");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.answer([...this.form.querySelectorAll("input:checked")].map((one) => one.value));
    });
    this.told = make("div", "predict-result");
    this.told.setAttribute("aria-live", "polite");
    this.go = button("Go on to the next question", "predict-next", () => this.next());
    this.make = make;
    this.button = button;
    this.add = button("Stop before this iteration", "predict-add", () => this.stopHere());
    this.add.title = "Adds a stop, so that the question comes when one goes on from before it";
    settings.append(this.add);
    this.nothing = make("p", "predict-nothing");
    this.nothing.setAttribute("role", "alert");
    this.host.replaceChildren(head, settings, this.note, this.form, this.told, this.go);
  }

  /** A stop before the selected iteration, told in the address. */
  stopHere() {
    const { main, index, address } = this.app;
    if (this.question || !this._mayStop()) return;
    const stops = new Set([...(this.given ?? []), index]);
    address.stops = [...stops].sort((a, b) => a - b).join();
    delete address.predict;
    this._done.get(main)?.delete(index); // it may have been asked already
    this._read();
    history.replaceState(null, "", addressOf(this.app, address));
    this._render();
  }

  /** Stories tell no more than may be known, and all again afterwards, wherever the position is. */
  _retell() {
    const { app } = this;
    for (const { name, model, story } of app.sides()) story.show(model, name === "B" ? app.indexOther : app.index);
  }

  /** Whether there can be a question about the selected iteration. */
  _mayStop() {
    const { main, index } = this.app;
    return index > 0 && index < (main?.length ?? 0) && Boolean(main.run.steps[index].w?.length);
  }

  _switch(on, kind) {
    const { address } = this.app;
    if (kind !== "given") delete address.stops;
    if (on && kind !== "given") address.predict = kind;
    else delete address.predict;
    if (!on) delete address.stops;
    if (this.question) this._close();
    this._read();
    this.app.selectRequest(this.app.request); // leaves what is selected; the address is told with the next change
    this._render();
  }

  _render() {
    if (!this.form) return;
    const { score, question, result, make } = this;
    const answered = score.asked ? `${score.right} of ${score.asked} right` : "no answers yet";
    this.tally.textContent = score.skipped ? `${answered}, ${score.skipped} skipped` : answered;
    this.switch.checked = this.on;
    const wanted = this.given ? "given" : this.kind;
    const kinds = Object.entries(QUESTION_KINDS);
    if (this.given) kinds.unshift(["given", `iterations ${this.given.join(", ")}`]);
    const key = kinds.flat().join();
    if (this._kinds !== key) {
      this._kinds = key;
      this.choice.replaceChildren(...kinds.map(([value, text]) => {
        const option = make("option", "", text);
        option.value = value;
        return option;
      }));
    }
    this.choice.value = wanted;
    const left = this.on && this.app.main ? this.stops().filter((i) => !this._asked().has(i)).length : 0;
    const none = this.on && !this.stops().length ? "There is nothing to ask in this run." : "";
    const lost = this.given && this.app.main ? this.given.filter((i) => !this.stops().includes(i)) : [];
    const strange = lost.length ? [`The address asks for a stop where there is none to make: iteration ${lost.join(", ")} is not one of this run's ${grouped(this.app.main.length)} in which something runs.`] : [];
    const wrong = [...this.wrong, ...strange];
    const note = wrong.length ? wrong.join(" ") : none || (this.on ? `${left} ${left === 1 ? "stop is" : "stops are"} left in this run.` : "");
    if (this.note.textContent !== note) this.note.textContent = note;
    this.note.hidden = !note;
    if (question !== this._drawn) {
      this._drawn = question;
      this.nothing.textContent = "";
      this.form.replaceChildren(...(question ? this._questionParts(question) : []));
    }
    this.form.hidden = !question;
    this.add.disabled = Boolean(question) || !this._mayStop();
    if (result !== this._drawnResult) {
      this._drawnResult = result;
      this.told.replaceChildren(...(result ? this._resultParts(result) : []));
    }
    this.told.hidden = !result || Boolean(question);
    this.go.hidden = !result || Boolean(question) || !left;
    return undefined;
  }

  _questionParts(question) {
    const { make } = this;
    const field = make("fieldset");
    const legend = make("legend", "", `Iteration ${grouped(question.column)}: ${question.words}`);
    field.append(legend);
    for (const { value, text } of question.choices) {
      const label = make("label", "predict-choice");
      const input = make("input");
      input.type = question.several ? "checkbox" : "radio";
      input.name = "predict-choice";
      input.value = value;
      if (question.several) input.addEventListener("change", () => this._alone(input));
      label.append(input, ` ${text}`);
      field.append(label);
    }
    const send = make("button", "predict-answer", "Answer");
    send.type = "submit";
    const row = make("p", "predict-buttons");
    const many = question.several ? "choose all that are right" : "choose one";
    row.append(send, this.button("Skip", "predict-skip", () => this.skip()), make("span", "quiet", many));
    return [field, row, this.nothing];
  }

  /** Nobody, and somebody, cannot both be chosen. */
  _alone(input) {
    if (!input.checked) return;
    for (const other of this.form.querySelectorAll("input")) {
      if (other !== input && (other.value === NOBODY_CHOICE || input.value === NOBODY_CHOICE)) other.checked = false;
    }
  }

  _resultParts({ right, values, question }) {
    const { make } = this;
    const verdict = right === null ? "Skipped." : right ? "Right." : "Not quite.";
    const head = make("p", right === null ? "predict-verdict" : right ? "predict-verdict is-right" : "predict-verdict is-wrong");
    const correct = question.choices.filter((choice) => choice.right).map((choice) => choice.text.split(":")[0]);
    head.append(make("strong", "", verdict), ` Iteration ${grouped(question.column)}: ${correct.join(", ")} ${question.kind === "shuffled" ? (correct[0]?.startsWith("slots") ? "are the window" : "is the window") : question.kind === "running" ? (correct.length > 1 ? "run" : "runs") : correct.length > 1 ? `are ${question.kind}` : `is ${question.kind}`}.`);
    const list = make("ul", "predict-reasons");
    for (const choice of question.choices) {
      if (!choice.why) continue;
      const taken = values.includes(choice.value);
      const mark = choice.right ? "\u2713" : taken ? "\u2717" : "\u00b7";
      const item = make("li", choice.right ? "is-right" : taken ? "is-wrong" : "");
      const sign = make("span", "predict-mark", mark);
      sign.setAttribute("aria-label", choice.right ? "right:" : taken ? "chosen, and wrong:" : "wrong:");
      sign.setAttribute("role", "img");
      item.append(sign, ` ${choice.why}`);
      list.append(item);
    }
    for (const line of question.because) list.append(make("li", "", line));
    return [head, list];
  }

  /** Covers what lanes and charts have to tell of columns that may not be seen yet, for as long as a question is open. */
  _cover() {
    const covered = [];
    for (const side of this.question ? this.app.sides() : []) {
      for (const part of ["lanes", "charts"]) covered.push([side, document.getElementById(`${part}-${side.name.toLowerCase()}`)]);
    }
    while (this._veils.length > covered.length) this._veils.pop().remove();
    covered.forEach(([side, host], k) => {
      const section = host.closest("section");
      const veil = (this._veils[k] ??= this.make("div", "predict-veil", "not to be seen yet"));
      if (veil.parentElement !== section) section.append(veil);
      this._lay(side, section, host.querySelector("canvas") ?? host, host, veil);
    });
    if (!covered.length || this._following) return;
    this._following = true; // lanes may be scrolled and zoomed meanwhile
    const follow = () => {
      this._following = false;
      if (this.question) this._cover();
    };
    requestAnimationFrame(follow);
  }

  /** A veil from the end of the last column that may be seen to the right edge. */
  _lay({ axis, model }, section, picture, host, veil) {
    const [outer, inner, whole] = [section, picture, host].map((one) => one.getBoundingClientRect());
    const last = Math.max(0, Math.min(model.length - 1, this.limitOf(model)));
    const left = Math.min(whole.width, Math.max(GUTTER, GUTTER + axis.right(last) - axis.left));
    const bottom = Math.min(inner.bottom, whole.bottom);
    Object.assign(veil.style, {
      left: `${whole.left - outer.left + left}px`,
      top: `${inner.top - outer.top}px`,
      width: `${whole.width - left}px`,
      height: `${Math.max(0, bottom - inner.top)}px`,
    });
    veil.hidden = whole.width - left < 1;
  }
}

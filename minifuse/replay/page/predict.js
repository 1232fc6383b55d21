/**
 * Predict: the page stops before a column of A, asks what will be decided in it, and tells the answer and its reason.
 *
 * While a question is open nothing later can be selected, and what the lanes and charts have to tell of later columns
 * is covered.
 */

import { PredictView } from "./predictview.js";
import { QUESTION_KINDS, questionAt, stopsOf } from "./questions.js";

/** Stops the replay, asks, and keeps the score. */
export class Predict {
  /** @param {object} app */
  constructor(app) {
    this.app = app;
    /** @type {import("./questions.js").Question|null} that is open */
    this.question = null;
    /** What was answered last: right (null: skipped), the values chosen, the question. */
    this.result = null;
    this.score = { right: 0, asked: 0, skipped: 0 };
    this._done = new WeakMap(); // model -> columns that were asked
    this.view = new PredictView(document.getElementById("predict"), this);
    this.read();
  }

  /** The last column of a run of which anything may be told. @param {import("./model.js").RunModel} model */
  limitOf(model) {
    if (!this.question) return Infinity;
    const last = this.question.column - 1;
    return model === this.app.main || !this.app.pair ? last : this.app.pair.at(last).b;
  }

  /** Take what the address asks for. */
  read() {
    const { stops, predict } = this.app.address;
    this.wrong = [];
    this.kind = predict && Object.hasOwn(QUESTION_KINDS, predict) ? predict : "any";
    if (predict && predict !== this.kind) this.wrong.push(`The address has predict=${predict}: give ${Object.keys(QUESTION_KINDS).join(", ")}.`);
    const numbers = stops ? stops.split(",").map((one) => one.trim()) : [];
    const good = numbers.filter((one) => /^[0-9]{1,9}$/.test(one) && Number(one) > 0);
    if (good.length < numbers.length) this.wrong.push(`The address has stops=${stops}: give whole numbers from 1 on, as in stops=10,20,35.`);
    /** Columns that the address names; null: the kind says where to stop. */
    this.given = good.length ? [...new Set(good.map(Number))].sort((a, b) => a - b) : null;
    this.on = this.given !== null || predict === this.kind;
    this._stops = null;
  }

  /** The stops of run A, ascending. @returns {number[]} */
  stops() {
    const { main } = this.app;
    if (!this.on) return [];
    if (this._stops?.model !== main) {
      const list = this.given ? this.given.filter((i) => main.run.steps[i]?.w) : stopsOf(main, this.kind);
      this._stops = { model: main, list };
    }
    return this._stops.list;
  }

  /** Stops of run A at which nothing was asked yet. @returns {number[]} */
  left() {
    return this.stops().filter((i) => !this._asked().has(i));
  }

  _asked() {
    const { main } = this.app;
    if (!this._done.has(main)) this._done.set(main, new Set());
    return this._done.get(main);
  }

  /** Where one comes to who goes from one position to another; asks, if a stop lies between them. */
  allow(from, to) {
    if (this.question) return Math.min(to, this.question.column - 1);
    const stop = to > from ? this.left().find((i) => i > from && i <= to) : undefined;
    if (stop === undefined) return to;
    this.question = questionAt(this.app.main, stop, this.kind);
    this.result = null;
    queueMicrotask(() => {
      this._turned(); // the position may stay what it is: then nothing else would draw
      this.view.ask();
    });
    return stop - 1;
  }

  /** Another run is chosen: what was asked of the one before is no question any more. */
  leave() {
    if (!this.question && !this.result) return;
    this.question = this.result = null;
    this._turned();
  }

  /** @param {string[]} values of the choices taken */
  answer(values) {
    const right = this.question.choices.every((choice) => choice.right === values.includes(choice.value));
    this.score.asked += 1;
    if (right) this.score.right += 1;
    this._reveal(right, values);
  }

  skip() {
    this.score.skipped += 1;
    this._reveal(null, []);
  }

  _reveal(right, values) {
    const { question } = this;
    this._asked().add(question.column);
    this.result = { right, values, question };
    this.question = null;
    this._turned();
    this.app.select(question.column);
    this.view.told();
  }

  /** On to the next stop; to the end if there is none. */
  next() {
    this.result = null;
    this.render();
    this.app.select(this.app.positions - 1);
  }

  /** Whether there can be a question about the selected column. */
  get mayStop() {
    const { main, index } = this.app;
    return !this.question && index > 0 && Boolean(main.run.steps[index]?.w);
  }

  /** A stop before the selected column, told in the address. */
  stopHere() {
    const { index, address } = this.app;
    if (!this.mayStop) return;
    address.stops = [...new Set([...(this.given ?? []), index])].sort((a, b) => a - b).join();
    delete address.predict;
    this._asked().delete(index); // it may have been asked already
    this._readdress();
  }

  /** Stop or not, and before what. @param {boolean} on @param {string} kind of question; "given": where the address says */
  switchTo(on, kind) {
    const { address } = this.app;
    if (!on || kind !== "given") delete address.stops;
    if (on && kind !== "given") address.predict = kind;
    else delete address.predict;
    this.question = null;
    this._readdress();
    this._turned();
  }

  _readdress() {
    this.read();
    this.app.teller.tellAddress();
    this.render();
  }

  /** A question was opened or closed: what is covered, and what may be told, are others. */
  _turned() {
    document.body.classList.toggle("asking", Boolean(this.question));
    this.app.layout();
    this.app.changed();
  }

  render() {
    this.view.render();
  }
}

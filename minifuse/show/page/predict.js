/**
 * Predict: the page stops before a column of A, asks what will be decided in it, and tells the answer and its reason.
 *
 * Lanes and charts are covered behind the next stop. While a question is open, columns behind it cannot be selected.
 */

import { Decisions } from "./decisions.js";
import { part } from "./elements.js";
import { oncePerModel } from "./model.js";
import { PredictView } from "./predictview.js";
import { QUESTION_KINDS, questionAt, stopsAt, stopsOf } from "./questions.js";

/** Stops the replay, asks, and keeps the score. */
export class Predict {
  constructor(app) {
    this.app = app;
    /** @type {import("./questions.js").Question|null} the open question */
    this.question = null;
    /** What was answered last: right (null: skipped), the values chosen, the question. */
    this.result = null;
    this.score = { right: 0, asked: 0, skipped: 0 };
    this._askedOf = oncePerModel(() => new Set()); // columns that were asked about
    this._decisionsOf = oncePerModel((model) => new Decisions(model));
    this.view = new PredictView(part("predict"), this);
    this.read();
  }

  /** The last column of a run that may be shown. */
  limitOf(model) {
    const last = this.limit;
    return last === Infinity || model === this.app.main || !this.app.pair ? last : this.app.pair.at(last).b;
  }

  /** The next stop at which nothing was asked yet; undefined: there is none. */
  get ahead() {
    const { index } = this.app;
    return this.left().find(({ before }) => before > index);
  }

  /** The last column of A before the question that is open, or before the next stop; Infinity: there is none. */
  get limit() {
    const next = this.question ?? this.ahead;
    return next ? next.before - 1 : Infinity;
  }

  /** Read what the address asks for. */
  read() {
    const { stops, predict } = this.app.address;
    this.wrong = [];
    this._limit = null; // the limit that is drawn
    this.kind = predict && Object.hasOwn(QUESTION_KINDS, predict) ? predict : "any";
    if (predict && predict !== this.kind) this.wrong.push(`The address has predict=${predict}: give ${Object.keys(QUESTION_KINDS).join(", ")}.`);
    const numbers = stops ? stops.split(",").map((one) => one.trim()) : [];
    const good = numbers.filter((one) => /^[0-9]{1,9}$/.test(one) && Number(one) > 0);
    if (good.length < numbers.length) this.wrong.push(`The address has stops=${stops}: give whole numbers from 1 on, as in stops=10,20,35.`);
    /** Columns that the address names; null: the kind says where to stop. */
    this.given = good.length ? [...new Set(good.map(Number))].sort((a, b) => a - b) : null;
    this.on = this.given !== null || predict === this.kind;
    this._stops = this._left = null;
  }

  /** What was possible in the columns of run A. */
  decisions() {
    return this._decisionsOf(this.app.main);
  }

  /** The stops of run A, in the order in which the reader reaches them. @returns {import("./questions.js").Stop[]} */
  stops() {
    const { main } = this.app;
    if (!this.on) return [];
    if (this._stops?.model !== main) {
      const decisions = this.decisions();
      const list = this.given ? stopsAt(decisions, this.given.filter((i) => i < main.length)) : stopsOf(decisions, this.kind);
      this._stops = { model: main, list };
      this._left = null;
    }
    return this._stops.list;
  }

  /** Stops of run A at which nothing was asked yet. @returns {import("./questions.js").Stop[]} */
  left() {
    const stops = this.stops(); // resets `_left` for another run
    this._left ??= stops.filter(({ column }) => !this._asked().has(column));
    return this._left;
  }

  /** Columns that the address names, and before which there is nothing to ask. */
  lost() {
    if (!this.given) return [];
    const columns = new Set(this.stops().map(({ column }) => column));
    return this.given.filter((i) => !columns.has(i));
  }

  _asked() {
    return this._askedOf(this.app.main);
  }

  /** The position that is reached on the way from one to another; asks, if a stop lies between them. */
  allow(from, to) {
    if (this.question) return Math.min(to, this.question.before - 1);
    const stop = to > from ? this.left().find(({ before }) => before > from && before <= to) : undefined;
    if (!stop) return to;
    this.question = questionAt(this.decisions(), stop.column, this.kind);
    this.result = null;
    queueMicrotask(() => {
      this._turned(); // the position may stay what it is: then nothing else would draw
      this.view.ask();
    });
    return stop.before - 1;
  }

  /** Close the question: another run is chosen. */
  leave() {
    if (!this.question && !this.result) return;
    this.question = this.result = null;
    this._turned();
  }

  /** @param {string[]} values of the choices that the reader took */
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
    this._left = null;
    this.result = { right, values, question };
    this.question = null;
    this._turned();
    // With several workers, the next stop may come before this column.
    const next = this.left().find(({ before }) => before >= question.before);
    this.app.select(Math.min(question.column, next ? next.before - 1 : Infinity));
    this.view.answered();
  }

  /** On to the next stop; to the end if there is none. */
  next() {
    this.result = null;
    this.render();
    this.app.select(this.app.positions - 1);
  }

  /** Whether there can be a question about the selected column. */
  get mayStop() {
    return !this.question && stopsAt(this.decisions(), [this.app.index]).length > 0;
  }

  /** Add a stop before the selected column to the address. */
  stopHere() {
    const { index, address } = this.app;
    if (!this.mayStop) return;
    address.stops = [...new Set([...(this.given ?? []), index])].sort((a, b) => a - b).join();
    delete address.predict;
    this._asked().delete(index); // it may have been asked already
    this._readdress();
  }

  /** Choose whether to stop, and before what. @param {string} kind of question; "given": where the address says */
  switchTo(on, kind) {
    const { address } = this.app;
    if (!on || kind !== "given") delete address.stops;
    if (on && kind !== "given") address.predict = kind;
    else delete address.predict;
    this.question = this.result = null;
    this._readdress();
    this._turned();
  }

  _readdress() {
    this.read();
    this.app.announcer.writeAddress();
    this.render();
  }

  /** A question was opened or closed, or another stop is next: draw what may be shown now. */
  _turned() {
    this._limit = this.limit;
    document.body.classList.toggle("asking", Boolean(this.question));
    document.body.classList.toggle("covered", this._limit !== Infinity);
    this.app.layout();
    this.app.changed();
  }

  render() {
    if (this._limit !== this.limit) this._turned();
    this.view.render();
  }
}

/** What Predict shows: its settings and score, the open question, and what was right. */

import { columnName, iterationNumber, onWorker } from "./columns.js";
import { fillFrom, fillSelect, setText, tag } from "./elements.js";
import { QUESTION_KINDS } from "./questions.js";
import { capital } from "./words.js";

/** The part of the page in which Predict asks. */
export class PredictView {
  /** @param {import("./predict.js").Predict} predict */
  constructor(host, predict) {
    Object.assign(this, { host, predict, ...fillFrom("predict", host) });
    this.switch.addEventListener("change", () => predict.switchTo(this.switch.checked, this.choice.value));
    this.choice.addEventListener("change", () => predict.switchTo(true, this.choice.value));
    this.add.addEventListener("click", () => predict.stopHere());
    this.skip.addEventListener("click", () => predict.skip());
    this.go.addEventListener("click", () => predict.next());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._answer([...this.form.querySelectorAll("input:checked")].map((one) => one.value));
    });
  }

  /** A question has been opened: the reader is to answer. */
  ask() {
    this.form.querySelector("input")?.focus();
    this.host.scrollIntoView({ block: "nearest" });
  }

  /** The question has been answered or skipped: the reader may go on. */
  answered() {
    this.go.focus();
  }

  _answer(values) {
    const { question } = this.predict;
    if (values.length) return this.predict.answer(values);
    this.nothing.textContent = `Nothing is chosen: choose ${question.several ? "at least one" : "one"}, or skip.`;
    return this.form.querySelector("input").focus();
  }

  render() {
    const { predict } = this;
    const { score, question, result } = predict;
    const answered = score.asked ? `${score.right} of ${score.asked} right` : "no answers yet";
    this.tally.textContent = score.skipped ? `${answered}, ${score.skipped} skipped` : answered;
    this._settings();
    setText(this.note, this._notes());
    this.note.hidden = !this.note.textContent;
    if (question !== this._drawn) {
      this._drawn = question;
      this.nothing.textContent = "";
      this.asked.replaceChildren(...(question ? [this._fieldset(question)] : []));
      this.many.textContent = question?.several ? "choose all that are right" : "choose one";
    }
    this.form.hidden = !question;
    this.add.disabled = !predict.mayStop;
    if (result !== this._drawnResult) {
      this._drawnResult = result;
      this.result.replaceChildren(...(result ? this._resultParts(result) : []));
    }
    this.result.hidden = !result;
    this.go.hidden = !result || !predict.ahead;
  }

  _settings() {
    const { predict } = this;
    const kinds = Object.entries(QUESTION_KINDS);
    if (predict.given) {
      const { main } = predict.app;
      const numbers = predict.stops().map(({ column }) => iterationNumber(main, column));
      const noun = numbers.length > 1 ? "iterations" : "iteration";
      kinds.unshift(["given", numbers.length ? `${noun} ${numbers.join(", ")}` : "what the address names"]);
    }
    const key = kinds.join();
    if (this._kinds !== key) {
      this._kinds = key;
      fillSelect(this.choice, kinds);
    }
    this.switch.checked = predict.on;
    this.choice.value = predict.given ? "given" : predict.kind;
  }

  /** What is wrong with the address, or else how many stops are left. */
  _notes() {
    const { predict } = this;
    const lost = predict.on ? predict.lost() : [];
    const [stops, columns, exist, leave] = lost.length > 1 ? ["stops", "columns", "do", "leave"] : ["a stop", "column", "does", "leaves"];
    const strange = `The address has ${stops} with nothing to ask: ${columns} ${lost.join(", ")} of this run ${exist} not exist, or ${leave} no choice that can be asked about.`;
    const wrong = lost.length ? [...predict.wrong, strange] : predict.wrong;
    if (wrong.length || !predict.on) return wrong.join(" ");
    const left = predict.left().length;
    return predict.stops().length ? `${left} ${left === 1 ? "stop is" : "stops are"} left in this run.` : "There is nothing to ask in this run.";
  }

  _fieldset({ column, words, choices, several }) {
    const labels = choices.map(({ value, text }) => {
      const input = tag("input", { type: several ? "checkbox" : "radio", name: "predict-choice", value });
      return tag("label", "predict-choice", input, ` ${text}`);
    });
    return tag("fieldset", "", tag("legend", "", `${this._name(column)}: ${words}`), ...labels);
  }

  _name(column) {
    const { main } = this.predict.app;
    return `${capital(columnName(main, column))}${onWorker(main, main.steps[column].worker)}`;
  }

  _resultParts({ right, values, question }) {
    const [verdict, look] = right === null ? ["Skipped.", ""] : right ? ["Right.", " is-right"] : ["Not quite.", " is-wrong"];
    const answer = ` ${this._name(question.column)}: ${happened(question)}.`;
    const reasons = question.choices.filter(({ why }) => why).map((choice) => {
      const wrong = values.includes(choice.value) ? ["is-wrong", "chosen, and wrong:", "\u2717"] : ["", "wrong:", "\u00b7"];
      const [looks, label, mark] = choice.right ? ["is-right", "right:", "\u2713"] : wrong;
      const sign = tag("span", { class: "predict-mark", "aria-label": label, role: "img" }, mark);
      return tag("li", looks, sign, ` ${choice.why}`);
    });
    const because = question.because.map((line) => tag("li", "", line));
    return [
      tag("p", `predict-verdict${look}`, tag("strong", "", verdict), answer),
      tag("ul", "predict-reasons", ...reasons, ...because),
    ];
  }
}

/** What was right: "r1, r2 are admitted". */
function happened({ kind, choices }) {
  const names = choices.filter(({ right }) => right).map(({ name }) => name);
  const many = names.length > 1 || names[0].startsWith("slots");
  const ends = { shuffled: ["is the window", "are the window"], running: ["runs", "run"] }[kind] ?? [`is ${kind}`, `are ${kind}`];
  return `${names.join(", ")} ${ends[many ? 1 : 0]}`;
}

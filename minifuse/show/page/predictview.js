/** What Predict shows: its settings and score, the open question, and what was right. */

import { columnName, iterationNumber, onWorker } from "./columns.js";
import { actButton, fillSelect, tag } from "./elements.js";
import { QUESTION_KINDS } from "./questions.js";
import { capital } from "./words.js";

/** The part of the page in which Predict asks. */
export class PredictView {
  /** @param {import("./predict.js").Predict} predict */
  constructor(host, predict) {
    this.host = host;
    this.predict = predict;
    const head = tag("div", "predict-head");
    this.tally = tag("span", "predict-score");
    this.tally.setAttribute("aria-label", "Score");
    head.append(tag("h2", "", "Predict"), this.tally);
    const settings = tag("p", "predict-settings");
    const label = tag("label");
    this.switch = tag("input", "predict-on");
    this.switch.type = "checkbox";
    this.switch.addEventListener("change", () => predict.switchTo(this.switch.checked, this.choice.value));
    label.append(this.switch, " stop and ask before ");
    this.choice = tag("select", "predict-kind");
    this.choice.setAttribute("aria-label", "What to ask about");
    this.choice.addEventListener("change", () => predict.switchTo(true, this.choice.value));
    this.add = actButton("predict-add", "Stop before this iteration", () => predict.stopHere());
    this.add.title = "Adds a stop: its question comes when the reader goes on from an earlier iteration";
    settings.append(label, this.choice, this.add);
    this.note = tag("p", "quiet predict-note");
    this.form = tag("form", "predict-question");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._answer([...this.form.querySelectorAll("input:checked")].map((one) => one.value));
    });
    this.nothing = tag("p", "predict-nothing");
    this.nothing.setAttribute("role", "alert");
    this.result = tag("div", "predict-result");
    this.result.setAttribute("aria-live", "polite");
    this.go = actButton("predict-next", "Go on to the next question", () => predict.next());
    host.replaceChildren(head, settings, this.note, this.form, this.result, this.go);
  }

  /** A question has been opened: the reader is to answer. */
  ask() {
    this.form.querySelector("input")?.focus();
    this.host.scrollIntoView({ block: "nearest" });
  }

  /** The answer is told: the reader may go on. */
  told() {
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
    const left = predict.left().length;
    const note = this._notes(left);
    if (this.note.textContent !== note) this.note.textContent = note;
    this.note.hidden = !note;
    if (question !== this._drawn) {
      this._drawn = question;
      this.nothing.textContent = "";
      this.form.replaceChildren(...(question ? this._questionParts(question) : []));
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
  _notes(left) {
    const { predict } = this;
    const lost = predict.on ? predict.lost() : [];
    const many = lost.length > 1;
    const strange = lost.length ? [`The address has ${many ? "stops" : "a stop"} with nothing to ask: ${many ? "columns" : "column"} ${lost.join(", ")} of this run ${many ? "do" : "does"} not exist, or ${many ? "leave" : "leaves"} no choice that can be asked about.`] : [];
    const wrong = [...predict.wrong, ...strange];
    if (wrong.length || !predict.on) return wrong.join(" ");
    return predict.stops().length ? `${left} ${left === 1 ? "stop is" : "stops are"} left in this run.` : "There is nothing to ask in this run.";
  }

  _questionParts({ column, words, choices, several }) {
    const field = tag("fieldset");
    field.append(tag("legend", "", `${this._name(column)}: ${words}`));
    for (const { value, text } of choices) {
      const label = tag("label", "predict-choice");
      const input = tag("input");
      input.type = several ? "checkbox" : "radio";
      input.name = "predict-choice";
      input.value = value;
      label.append(input, ` ${text}`);
      field.append(label);
    }
    const send = tag("button", "predict-answer", "Answer");
    send.type = "submit";
    const row = tag("p", "predict-buttons");
    const many = several ? "choose all that are right" : "choose one";
    row.append(send, actButton("predict-skip", "Skip", () => this.predict.skip()), tag("span", "quiet", many));
    return [field, row, this.nothing];
  }

  _name(column) {
    const { main } = this.predict.app;
    return `${capital(columnName(main, column))}${onWorker(main, main.run.steps[column].k ?? 0)}`;
  }

  _resultParts({ right, values, question }) {
    const head = tag("p", `predict-verdict${right === null ? "" : right ? " is-right" : " is-wrong"}`);
    head.append(tag("strong", "", right === null ? "Skipped." : right ? "Right." : "Not quite."), ` ${this._name(question.column)}: ${happened(question)}.`);
    const list = tag("ul", "predict-reasons");
    for (const choice of question.choices.filter(({ why }) => why)) {
      const taken = values.includes(choice.value);
      const item = tag("li", choice.right ? "is-right" : taken ? "is-wrong" : "");
      const sign = tag("span", "predict-mark", choice.right ? "\u2713" : taken ? "\u2717" : "\u00b7");
      sign.setAttribute("aria-label", choice.right ? "right:" : taken ? "chosen, and wrong:" : "wrong:");
      sign.setAttribute("role", "img");
      item.append(sign, ` ${choice.why}`);
      list.append(item);
    }
    for (const line of question.because) list.append(tag("li", "", line));
    return [head, list];
  }
}

/** What was right: "r1, r2 are admitted". */
function happened({ kind, choices }) {
  const names = choices.filter(({ right }) => right).map(({ name }) => name);
  const many = names.length > 1 || names[0].startsWith("slots");
  const ends = { shuffled: ["is the window", "are the window"], running: ["runs", "run"] }[kind] ?? [`is ${kind}`, `are ${kind}`];
  return `${names.join(", ")} ${ends[many ? 1 : 0]}`;
}

/** The selected iteration in words, and the facts of a run. */

import { columnName, onWorker } from "./columns.js";
import { tag } from "./elements.js";
import { moveSums } from "./moves.js";
import { capital, counted, grouped, seconds } from "./words.js";

const MOST_FINISHED = 8; // requests that are named

/** "r1, r2 and 3 more": the names of some requests, each once. @param {number} [most] */
export function someOf(model, list, most = 8) {
  const ids = [...new Set(list)].map((r) => String(model.requests[r].id));
  return ids.length > most ? `${ids.slice(0, most).join(", ")} and ${ids.length - most} more` : ids.join(", ");
}

/** Describes a column, in sentences. */
export function sentencesOf(model, i) {
  const step = model.steps[i];
  const sentences = [];
  const noun = model.nouns.computed;
  const took = `${seconds(step.start)} to ${seconds(step.end)}, ${seconds(step.end - step.start)} long`;
  if (step.isWait) {
    sentences.push(`Nothing ran: ${took}.`);
    return sentences;
  }
  const worker = onWorker(model, step.worker);
  if (!step.work.length) {
    sentences.push(`${capital(columnName(model, i))}${worker}, beside the iterations: ${took}.`);
  } else {
    const apart = step.phase === "preprocessing" ? ", prompts apart from the batch" : "";
    sentences.push(`${capital(columnName(model, i))}${worker}${apart}: ${took}.`);
    const own = new Set(step.work.map(([r]) => r));
    const idle = step.idle ? `, ${grouped(step.idle)} of them idle` : ", none idle";
    sentences.push(`Computes ${counted(step.computed, noun)}${idle}, for ${counted(own.size, "request")}: ${someOf(model, [...own])}.`);
    if (model.ofCells) sentences.push(`Tasks: ${tasks(model, step)}.`);
    else if (step.waves.length > 1) sentences.push(`Attends in ${step.waves.length} waves.`);
    if (step.lanes.length) sentences.push(`Packs attention into ${counted(step.lanes.length, "lane")}.`);
  }
  if (step.admitted.length) sentences.push(`Admits ${someOf(model, step.admitted)}.`);
  for (const [request, onDevice, onHost] of step.reused.slice(0, 4)) {
    sentences.push(`${model.requests[request].id} finds ${grouped(onDevice)} of its tokens on the device and ${grouped(onHost)} on the host.`);
  }
  if (step.evicted.length) sentences.push(`Evicts ${someOf(model, step.evicted)}.`);
  for (const [kind, { tokens }] of moveSums(step.moves)) sentences.push(`Moves ${counted(tokens, model.nouns.moved)}: ${kind.replace("_", " ")}.`);
  if (step.exposed > 0) sentences.push(`Waited ${seconds(step.exposed)} for transfers.`);
  if (step.finished.length) {
    const names = step.finished.slice(0, MOST_FINISHED).map(([r, why]) => `${model.requests[r].id} (${why})`).join(", ");
    const more = step.finished.length - MOST_FINISHED;
    sentences.push(`Finishes ${names}${more > 0 ? ` and ${more} more` : ""}.`);
  }
  if (step.discarded) sentences.push(`Discards ${counted(step.discarded, noun)} computed for requests that had ended.`);
  return sentences;
}

/**
 * Nodes by the type of their cells, in the order in which the types come: "5 encoder nodes and 3 decoder nodes".
 *
 * @param {import("./step.js").Work[]} work
 */
export function nodesByType(model, work) {
  return [...countTypes(model, work)].map(([cell, number]) => counted(number, `${cell} node`)).join(" and ");
}

function countTypes(model, work) {
  const types = new Map();
  for (const [, , , number = 0] of work) {
    const cell = model.run.cells[number];
    types.set(cell, (types.get(cell) ?? 0) + 1);
  }
  return types;
}

/** "3 internal2, then 2 waves of 5 leaf": the nodes of an iteration by type, wave after wave. */
function tasks(model, step) {
  const waves = step.waves.map(([from, to]) => {
    const types = countTypes(model, step.work.slice(from, to));
    return [...types].map(([cell, number]) => `${number} ${cell}`).join(" and ") || "idle rows alone";
  });
  const alike = [];
  for (const wave of waves) {
    if (alike.length && alike.at(-1)[0] === wave) alike.at(-1)[1] += 1;
    else alike.push([wave, 1]);
  }
  const parts = alike.slice(0, 6).map(([wave, times]) => (times > 1 ? `${times} waves of ${wave}` : wave));
  return parts.join(", then ") + (alike.length > 6 ? ", and so on" : "");
}

/** Shows the selected iteration, of both runs if there are two. */
export class NowView {
  constructor(host, app) {
    this.host = host;
    this.app = app;
  }

  show() {
    const { app } = this;
    const sides = [[app.main, app.index], ...(app.other ? [[app.other, app.indexOther]] : [])];
    const parts = sides.flatMap(([model, i]) => {
      const list = tag("ul", "", ...sentencesOf(model, i).map((sentence) => tag("li", "", sentence)));
      return sides.length < 2 ? [list] : [tag("h3", "", `${model.run.title}, ${columnName(model, i)}`), list];
    });
    this.host.replaceChildren(...parts);
  }
}

/** Shows a run's technique, stages, model and options. */
export function showFacts(host, model) {
  const rows = [...model.run.facts];
  rows.push(["memory of the device", `${grouped(model.run.capacity)} ${model.nouns.slot}s`]);
  host.replaceChildren(...rows.flatMap(([name, value]) => [tag("dt", "", name), tag("dd", "", value)]));
}

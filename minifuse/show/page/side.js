/** A or B: one of the two runs on the page, with its views. */

import { Axis } from "./axis.js";
import { part } from "./elements.js";
import { LanesView } from "./lanesview.js";
import { ChartsView } from "./chartsview.js";
import { MemoryView } from "./memory.js";
import { WhyView } from "./why.js";
import { StoryView } from "./story.js";
import { AnswersView } from "./answers.js";

const FIT_FROM = 5; // pixels of a column from which on the whole run is shown at first
const USUAL_WIDTH = 10; // pixels of a column otherwise
const WIDEST_AT_FIRST = 26;

/** One run on the page, with its views. */
export class Side {
  constructor(name, app) {
    this.name = name;
    this.app = app;
    this.model = null;
    this.axes = new Map();
    const axis = () => this.axis;
    const low = name.toLowerCase();
    this.lanes = new LanesView(part(`lanes-${low}`), app, { side: name, axis });
    this.charts = new ChartsView(part(`charts-${low}`), app, { side: name, axis });
    this.memory = new MemoryView(part(`memory-${low}`), app);
    this.why = new WhyView(part(`why-${low}`), app);
    this.story = new StoryView(part(`story-${low}`), app);
    this.answers = new AnswersView(part(`answers-${low}`), app);
    this.lanes.onMove(() => {
      this.charts.draw();
      app.scales.moved(this);
    });
  }

  /** The axis of the run that is shown. Each run keeps its own. */
  get axis() {
    if (!this.axes.has(this.model)) {
      const axis = new Axis(this.model);
      axis.mode = this.app.mode;
      axis.fit(this.lanes.seen, { widest: WIDEST_AT_FIRST });
      if (axis.width < FIT_FROM) axis.zoomTo(USUAL_WIDTH);
      this.axes.set(this.model, axis);
    }
    return this.axes.get(this.model);
  }

  get views() {
    return [this.memory, this.lanes, this.charts, this.why, this.story, this.answers]; // memory reads sizes, so it comes first
  }

  titles() {
    const { run } = this.model;
    const two = Boolean(this.app.other);
    const title = two ? `${this.name}: ${run.title}` : run.title;
    const head = part(`title-${this.name.toLowerCase()}`);
    head.textContent = head.title = run.summary ? `${title} \u2013 ${run.summary}` : title; // it may be cut at the end
    for (const panel of ["Memory", "Charts"]) {
      part(`${panel.toLowerCase()}-title-${this.name.toLowerCase()}`).textContent = two ? `${panel} of ${run.title}` : panel;
    }
    if (this.name === "B") for (const panel of ["why", "story", "answers"]) part(`${panel}-title-b`).textContent = `In ${run.title}`;
  }
}

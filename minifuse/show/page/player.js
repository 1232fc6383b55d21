/** Plays a run: so many columns a second, up to its end or a stop. */

/** Moves the app's position on by itself. */
export class Player {
  /** @param {() => number} speed columns a second @param {() => void} changed called when it begins or pauses */
  constructor(app, speed, changed) {
    this.app = app;
    this.speed = speed;
    this.changed = changed;
    this.playing = false;
  }

  /** Play, or pause. */
  turn() {
    if (this.playing) this.pause();
    else this._play();
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    cancelAnimationFrame(this._frame);
    this.changed();
  }

  _play() {
    const { app } = this;
    this.playing = true;
    if (app.position >= app.positions - 1) app.select(0);
    this.changed();
    let last = performance.now();
    let due = 0;
    const frame = (now) => {
      due += ((now - last) / 1000) * this.speed();
      last = now;
      const steps = Math.floor(due);
      due -= steps;
      if (steps) {
        const wanted = app.position + steps;
        app.select(wanted);
        if (app.position < wanted) return this.pause(); // the end, or a stop
      }
      this._frame = requestAnimationFrame(frame);
    };
    this._frame = requestAnimationFrame(frame);
  }
}

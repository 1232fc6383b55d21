/**
 * One way to draw, two back ends: a canvas for the screen, and SVG for export and print.
 *
 * Lengths are CSS pixels. A pattern is drawn over the fill, in the colour `ink`: it tells without colours what the fill
 * tells.
 *
 * @typedef {{fill?: string, stroke?: string, pattern?: string, ink?: string, title?: string, alpha?: number}} RectStyle
 * @typedef {{stroke?: string, width?: number, dash?: number[]}} LineStyle
 * @typedef {{anchor?: "start"|"middle"|"end", size?: number, fill?: string, weight?: string}} TextStyle
 */

const TILE = 6; // pixels of a side of a pattern
/** Strokes of each pattern in a tile: [x1, y1, x2, y2]; a stroke of no length is a dot. */
const STROKES = {
  stripes: [[0, 6, 6, 0], [-1, 1, 1, -1], [5, 7, 7, 5]],
  backstripes: [[0, 0, 6, 6], [-1, 5, 1, 7], [5, -1, 7, 1]],
  cross: [[0, 6, 6, 0], [0, 0, 6, 6]],
  dots: [[1.5, 1.5, 1.5, 1.5], [4.5, 4.5, 4.5, 4.5]],
  bars: [[0, 3, 6, 3]],
  columns: [[3, 0, 3, 6]],
};
const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
const SVG_NAMESPACE = "http://www.w3.org/2000/svg"; // a name, which nothing loads

let probe = null; // a context that measures texts

/** What both back ends share. */
class Surface {
  /** A line between two points. */
  line(x1, y1, x2, y2, { stroke = "#000", width = 1, dash } = {}) {
    this.path([[x1, y1], [x2, y2]], { stroke, width, dash });
  }

  /** A line with a head at its end. */
  arrow(x1, y1, x2, y2, style = {}) {
    arrowParts(x1, y1, x2, y2, style).forEach(([points, look]) => this.path(points, look));
  }

  /** The width of a text with the fonts of this machine: the reader of an SVG may have others. */
  measure(string, size = 11) {
    probe ??= document.createElement("canvas").getContext("2d");
    probe.font = `${size}px ${FONT}`;
    return probe.measureText(string).width;
  }
}

/** Draws on a canvas, sharp on any screen. */
export class CanvasSurface extends Surface {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    super();
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.width = 0;
    this.height = 0;
    this._patterns = new Map();
  }

  /** Sets the size, in CSS pixels, and clears. */
  begin(width, height) {
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
    const { canvas, context } = this;
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    this.width = width;
    this.height = height;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.textBaseline = "middle";
  }

  rect(x, y, w, h, { fill, stroke, pattern, ink, alpha } = {}) {
    const { context } = this;
    if (alpha !== undefined) context.globalAlpha = alpha;
    if (fill) {
      context.fillStyle = fill;
      context.fillRect(x, y, w, h);
    }
    if (pattern) {
      context.fillStyle = this._pattern(pattern, ink || "#000");
      context.fillRect(x, y, w, h);
    }
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, Math.max(0, w - 1), Math.max(0, h - 1));
    }
    if (alpha !== undefined) context.globalAlpha = 1;
  }

  /** A line through several points. */
  path(points, { stroke, width = 1, dash, fill } = {}) {
    const { context } = this;
    context.beginPath();
    points.forEach(([x, y], k) => (k ? context.lineTo(x, y) : context.moveTo(x, y)));
    if (fill) {
      context.fillStyle = fill;
      context.fill();
    }
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = width;
      context.setLineDash(dash || []);
      context.stroke();
      context.setLineDash([]);
    }
  }

  /** @param {number} y the middle of the line */
  text(x, y, string, { anchor = "start", size = 11, fill = "#000", weight = "normal" } = {}) {
    const { context } = this;
    context.font = `${weight} ${size}px ${FONT}`;
    context.textAlign = anchor === "middle" ? "center" : anchor;
    context.fillStyle = fill;
    context.fillText(string, x, y);
  }

  /** Draws nothing outside of a rectangle until `unclip`. */
  clip(x, y, w, h) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, w, h);
    this.context.clip();
  }

  unclip() {
    this.context.restore();
  }

  _pattern(name, ink) {
    const key = `${name} ${ink}`;
    let pattern = this._patterns.get(key);
    if (!pattern) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = TILE;
      const context = tile.getContext("2d");
      context.strokeStyle = ink;
      context.lineCap = "round";
      context.lineWidth = 1.3;
      for (const [x1, y1, x2, y2] of STROKES[name]) {
        context.beginPath();
        context.moveTo(x1, y1);
        context.lineTo(x2, y2 + (x1 === x2 && y1 === y2 ? 0.01 : 0));
        context.stroke();
      }
      pattern = this.context.createPattern(tile, "repeat");
      this._patterns.set(key, pattern);
    }
    return pattern;
  }
}

let picturesMade = 0;

/** Draws an SVG document. Its ids are unique, as a printed page has several documents. */
export class SvgSurface extends Surface {
  constructor() {
    super();
    this._name = `picture${picturesMade++}`;
    this._parts = [];
    this._defs = new Map();
    this._open = 0;
  }

  /** Sets the size. There is nothing to clear: an SVG is drawn once. */
  begin(width, height) {
    this.width = width;
    this.height = height;
  }

  rect(x, y, w, h, { fill, stroke, pattern, ink, title, alpha } = {}) {
    const opacity = alpha === undefined ? "" : ` opacity="${alpha}"`;
    const box = `x="${tidy(x)}" y="${tidy(y)}" width="${tidy(Math.max(0, w))}" height="${tidy(Math.max(0, h))}"${opacity}`;
    const inside = title ? `<title>${escaped(title)}</title>` : "";
    const look = `fill="${escaped(fill || "none")}"${stroke ? ` stroke="${escaped(stroke)}"` : ""}`;
    if (fill || stroke || title) this._parts.push(`<rect ${box} ${look}>${inside}</rect>`);
    if (pattern) this._parts.push(`<rect ${box} fill="url(#${this._pattern(pattern, ink || "#000")})"/>`);
  }

  path(points, { stroke, width = 1, dash, fill } = {}) {
    const at = points.map(([x, y]) => `${tidy(x)},${tidy(y)}`).join(" ");
    const line = stroke ? ` stroke="${escaped(stroke)}" stroke-width="${width}"` : "";
    const dashes = dash && dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "";
    this._parts.push(`<polyline points="${at}" fill="${escaped(fill || "none")}"${line}${dashes}/>`);
  }

  text(x, y, string, { anchor = "start", size = 11, fill = "#000", weight = "normal" } = {}) {
    const look = `text-anchor="${anchor}" font-size="${size}" font-weight="${weight}" fill="${escaped(fill)}"`;
    const at = `x="${tidy(x)}" y="${tidy(y)}" dominant-baseline="central"`;
    this._parts.push(`<text ${at} ${look} font-family="${escaped(FONT)}">${escaped(string)}</text>`);
  }

  clip(x, y, w, h) {
    const id = `${this._name}-clip${this._defs.size}`;
    const box = `x="${tidy(x)}" y="${tidy(y)}" width="${tidy(w)}" height="${tidy(h)}"`;
    this._defs.set(id, `<clipPath id="${id}"><rect ${box}/></clipPath>`);
    this._parts.push(`<g clip-path="url(#${id})">`);
  }

  unclip() {
    this._parts.push("</g>");
  }

  /** Draw what `fn` draws, moved to the right and down. */
  at(x, y, fn) {
    this._parts.push(`<g transform="translate(${tidy(x)} ${tidy(y)})">`);
    fn();
    this._parts.push("</g>");
  }

  /** @returns {string} the whole document */
  toString() {
    const size = `width="${tidy(this.width)}" height="${tidy(this.height)}" viewBox="0 0 ${tidy(this.width)} ${tidy(this.height)}"`;
    const defs = [...this._defs.values()].join("");
    return `<svg xmlns="${SVG_NAMESPACE}" ${size}><defs>${defs}</defs>${this._parts.join("\n")}</svg>\n`;
  }

  _pattern(name, ink) {
    const key = `${name} ${ink}`;
    const known = [...this._defs.keys()].indexOf(key);
    if (known >= 0) return `${this._name}-def${known}`;
    const id = `${this._name}-def${this._defs.size}`;
    const strokes = STROKES[name].map(([a, b, c, d]) => `M${a} ${b}L${c} ${d + (a === c && b === d ? 0.01 : 0)}`).join("");
    const look = `stroke="${escaped(ink)}" stroke-width="1.3" stroke-linecap="round"`;
    const unit = `width="${TILE}" height="${TILE}" patternUnits="userSpaceOnUse"`;
    this._defs.set(key, `<pattern id="${id}" ${unit}><path d="${strokes}" ${look}/></pattern>`);
    return id;
  }
}

/** The strokes of an arrow: a line, bent by so many pixels to its left, and a head. */
function arrowParts(x1, y1, x2, y2, { stroke = "#000", width = 1.5, dash, bend = 0, head = 6 }) {
  const length = Math.hypot(x2 - x1, y2 - y1) || 1;
  const [mx, my] = [(x1 + x2) / 2 + (bend * (y2 - y1)) / length, (y1 + y2) / 2 - (bend * (x2 - x1)) / length];
  const points = [];
  const pieces = bend ? 12 : 1;
  for (let k = 0; k <= pieces; k++) {
    const t = k / pieces;
    const u = 1 - t;
    points.push([u * u * x1 + 2 * u * t * mx + t * t * x2, u * u * y1 + 2 * u * t * my + t * t * y2]);
  }
  const [fx, fy] = points.at(-2);
  const angle = Math.atan2(y2 - fy, x2 - fx);
  const wing = (turn) => [x2 - head * Math.cos(angle + turn), y2 - head * Math.sin(angle + turn)];
  return [
    [points, { stroke, width, dash }],
    [[wing(0.45), [x2, y2], wing(-0.45), wing(0.45)], { fill: stroke, stroke, width: 1 }],
  ];
}

/** A number with at most two decimal places. */
function tidy(number) {
  return Math.round(number * 100) / 100;
}

const MARKS = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

/** Text for an SVG document. */
function escaped(text) {
  return String(text)
    .replace(/[&<>"]/g, (mark) => MARKS[mark])
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "\ufffd");
}

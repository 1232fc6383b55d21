/** The legend under a picture that is saved: those of the page are elements beside it, and are not saved with it. */

const [LINE, SAMPLE, TALL, GAP, BETWEEN, EDGE, SIZE] = [18, 26, 13, 5, 14, 4, 11]; // pixels
const LEEWAY = 1.15; // of a text, as a part of what is measured: fonts differ

/**
 * Makes a picture higher, and draws a legend there, in as many lines as it takes.
 *
 * @param {import("./surface.js").SvgSurface} surface
 * @param {{text: string, draw: (surface: object) => void, newLine?: boolean}[]} entries `draw`: a sample, at most 26
 *     pixels wide and 13 high; `newLine`: it stands at the beginning of a line
 * @param {{panel: string, soft: string}} colours
 */
export function drawLegendBelow(surface, entries, { panel, soft }) {
  if (!entries.length) return;
  const top = surface.height;
  let [x, y] = [EDGE, top + LINE / 2];
  const places = entries.map(({ text, newLine = false }) => {
    const wide = SAMPLE + GAP + surface.measure(text, SIZE) * LEEWAY;
    if (x > EDGE && (newLine || x + wide > surface.width)) [x, y] = [EDGE, y + LINE];
    const place = [x, y];
    x += wide + BETWEEN;
    return place;
  });
  surface.begin(surface.width, y + LINE + EDGE);
  surface.rect(0, top, surface.width, surface.height - top, { fill: panel });
  entries.forEach(({ text, draw }, k) => {
    const [left, above] = places[k];
    surface.at(left, above, () => draw(surface));
    surface.text(left + SAMPLE + GAP, above + TALL / 2, text, { size: SIZE, fill: soft });
  });
}

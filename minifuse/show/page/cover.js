/** What is drawn in the place of columns that may not be seen yet, while a question about them is open. */

/**
 * Where the columns end that may be seen.
 *
 * @param {import("./model.js").RunModel} model @param {import("./axis.js").Axis} axis
 * @param {{limit?: number, width: number}} look `limit`: the last column of which anything may be told
 * @param {number} left pixels on the left, for names
 * @returns {number} pixels from the left; `width`: nothing is covered
 */
export function coverFrom(model, axis, { limit = Infinity, width }, left) {
  if (limit >= model.length - 1) return width;
  return Math.max(left, Math.min(width, axis.right(limit) + left - axis.left));
}

/** Covers a part of a picture. */
export function drawCover(surface, x, y, w, h, palette) {
  if (w < 1) return;
  surface.rect(x, y, w, h, { fill: palette.panel, pattern: "backstripes", ink: palette.grid });
  surface.rect(x, y, 2, h, { fill: palette.accent });
  const words = "not to be seen yet";
  const [wide, middle] = [surface.measure(words, 12) + 12, x + w / 2];
  if (w < wide) return;
  surface.rect(middle - wide / 2, y + h / 2 - 10, wide, 20, { fill: palette.panel });
  surface.text(middle, y + h / 2, words, { anchor: "middle", size: 12, fill: palette.soft });
}

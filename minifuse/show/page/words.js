/** Numbers, durations and counts as the page writes them. */

/**
 * A time in the unit that suits it.
 *
 *     seconds(0.0123)  // "12.3 ms"
 *
 * @param {number} [step] the distance between two such times, which decides how many digits they have
 */
export function seconds(value, step = Math.abs(value) / 100) {
  const size = Math.max(Math.abs(value), step);
  const [unit, factor] = size < 1e-3 ? ["\u00b5s", 1e6] : size < 1 ? ["ms", 1e3] : ["s", 1];
  if (!value) return `0 ${unit}`;
  const places = Math.max(0, Math.min(4, -Math.floor(Math.log10(step * factor) + 1e-9)));
  return `${(value * factor).toFixed(places)} ${unit}`;
}

const THOUSANDS = new Intl.NumberFormat("en-US"); // made once: a new one for each number takes longer than all else

/** A whole number with thousands apart. */
export function grouped(value) {
  return THOUSANDS.format(Math.round(value));
}

/** A count and its noun: `1 slot`, `12 slots`. */
export function counted(count, noun) {
  return `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** A text with its first letter as a capital. */
export function capital(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}`;
}

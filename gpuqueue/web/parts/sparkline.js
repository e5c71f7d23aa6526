// The last hours of a device in a small picture: the memory used as an area, the load as a line.
import { html } from "../lib.js";
import { duration, percent } from "../words.js";

/** The size of the drawing, which is stretched to its place. */
const WIDTH = 320;
const HEIGHT = 24;

/** The path through known values, in pieces. @param {(number | null)[]} values @param {boolean} isArea */
export function pathThrough(values, isArea) {
  const step = WIDTH / Math.max(1, values.length);
  /** @param {number} share */
  const y = (share) => (HEIGHT - 1 - share * (HEIGHT - 2)).toFixed(1);
  let path = "";
  values.forEach((value, place) => {
    if (value === null) return;
    const [from, to] = [(place * step).toFixed(1), ((place + 1) * step).toFixed(1)];
    if (isArea) path += `M${from} ${HEIGHT}V${y(value)}H${to}V${HEIGHT}z`;
    else path += `${place && values[place - 1] !== null ? "L" : "M"}${from} ${y(value)}H${to}`;
  });
  return path;
}

/** What the picture shows in one line. @param {import("../types.js").DevicePast} past @param {number} stepS */
export function pastInWords({ used, utilisation }, stepS) {
  const [memory, loads] = [used, utilisation].map((each) => /** @type {number[]} */ (each.filter((value) => value !== null)));
  const first = used.findIndex((value) => value !== null);
  if (first < 0) return "nothing known yet";
  const load = loads.length ? `, load ${percent(loads.reduce((sum, each) => sum + each, 0) / loads.length)} on average` : "";
  return `last ${duration((used.length - first) * stepS)}: memory used up to ${percent(Math.max(...memory))}${load}`;
}

/** @param {{past: import("../types.js").DevicePast, stepS: number}} props */
export function Sparkline({ past, stepS }) {
  const words = pastInWords(past, stepS);
  return html`
    <svg class="sparkline" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${words}>
      <title>${words}</title>
      <path class="area" d=${pathThrough(past.used, true)} />
      <path class="line" d=${pathThrough(past.utilisation, false)} />
    </svg>
  `;
}

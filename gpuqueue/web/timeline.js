// The recorded memory of a run over time, as points of a chart.

/** @typedef {import("./job-types.js").RunDevice} RunDevice */

/** Workers may take a sample each second or two, so that a shorter time without one is no gap. */
const SHORT_S = 2;

/** The steps of a timeline. Short gaps have the value before them. @param {RunDevice} device @param {number | null} duration_s @returns {[number, number | null][]} */
export function stepsOf(device, duration_s) {
  const line = /** @type {import("./job-types.js").Timeline} */ (device.timeline);
  const reach = Math.max(1, Math.ceil(Math.max(SHORT_S, 2 * (device.peak.interval_s ?? 0)) / line.step_s));
  /** @type {[number, number | null][]} */
  const points = [];
  let last = /** @type {number | null} */ (null);
  let since = reach;
  line.bytes.forEach((each, place) => {
    since = each === null ? since + 1 : 0;
    last = each ?? (since <= reach ? last : null);
    points.push([place * line.step_s, last]);
  });
  const end = Math.min(line.bytes.length * line.step_s, duration_s ?? Number.POSITIVE_INFINITY);
  points.push([Math.max(end, (line.bytes.length - 1) * line.step_s), last]);
  return points;
}

// Figures of statistics: what follows from those that the API gives, and their words.

/** @typedef {import("./history-types.js").Figures} Figures */

const GIB = 2 ** 30;

/** @param {number} part @param {number} whole */
export const shareOf = (part, whole) => (whole > 0 ? part / whole : null);

/** The time of devices, in seconds: runs that share one share its time. @param {Figures} each */
export const deviceS = (each) => each.gpu_s + each.cpu_s;

/** Runs that ended neither by success nor by cancellation. @param {Figures} each */
export const failedOf = (each) => each.ended - each.succeeded - each.cancelled;

/** Memory asked for on a device, averaged over time; null without runs. @param {Figures} each */
export const askedBytes = (each) => shareOf(each.asked_byte_s, each.held_s);

/** The same over the time for which the peak is known: what the peak is compared with. @param {Figures} each */
export const measuredAskedBytes = (each) => shareOf(each.measured_byte_s, each.measured_s);

/** The peak on a device, averaged over the time for which it is known. @param {Figures} each */
export const peakBytes = (each) => shareOf(each.peak_byte_s, each.measured_s);

/** The peaks as a share of the memory asked for, where they are known. @param {Figures} each */
export const usedShare = (each) => shareOf(each.peak_byte_s, each.measured_byte_s);

/** Memory that was asked for and never used, not even at the peak, in GiB-hours. @param {Figures} each */
export const unusedGibHours = (each) => Math.max(0, each.measured_byte_s - each.peak_byte_s) / GIB / 3600;

/** @param {number} number */
const rounded = (number) => (number >= 100 ? Math.round(number).toLocaleString() : number >= 1 ? number.toFixed(1).replace(/\.0$/, "") : number.toFixed(2));

/** A number such as of hours, with fewer decimals if it is large. @param {number} number */
export const decimal = (number) => (number === 0 ? "0" : number < 0.01 ? "<0.01" : rounded(number));

/** @param {number} seconds */
export const hours = (seconds) => decimal(seconds / 3600);

/** The units in which an axis of times counts, in seconds. */
const UNITS_S = [1, 60, 3600, 86400];

/**
 * The values at which an axis from 0 has a line: two or three steps, the last one at or above the largest value.
 * @param {number} most the largest value
 * @param {number | null} unit in what it counts, at least one; null: a time, in the largest fitting unit
 * @param {boolean} isWhole whether only whole units occur
 */
export function ticksOf(most, unit, isWhole) {
  const one = unit ?? UNITS_S.filter((each) => each <= most).pop() ?? 1;
  if (!most) return [0, one];
  const least = most / one / 3;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least - 1e-9) ?? least;
  const size = (isWhole ? Math.max(1, step) : step) * one;
  return Array.from({ length: Math.max(1, Math.ceil(most / size - 1e-9)) + 1 }, (_, place) => place * size);
}

/**
 * The heights of columns in percent of the axis. A value that is written as 0 has none, nor has an unknown one.
 * @param {(number | null)[]} values
 * @param {(value: number) => string} shown
 * @param {number} top the value at the top of the axis
 */
export function heightsOf(values, shown, top) {
  const zero = shown(0);
  return values.map((each) => (each === null || shown(each) === zero || !top ? 0 : (each / top) * 100));
}

/**
 * Who holds memory of devices now, by user: how much, and how much of it is used. Jobs with a whole device and those
 * without a sample yet are left out.
 * @param {import("./types.js").QueueRow[]} rows
 */
export function heldNow(rows) {
  /** @type {Map<string, {asked: number, used: number}>} */
  const found = new Map();
  for (const row of rows) {
    if (row.whole || row.used_bytes === null || row.members) continue;
    const was = found.get(row.user) ?? { asked: 0, used: 0 };
    found.set(row.user, { asked: was.asked + row.mem_bytes * row.gpus, used: was.used + row.used_bytes });
  }
  return found;
}

/** Memory that a running job holds and does not use now, in bytes; 0 if that is not known. @param {import("./types.js").QueueRow} row */
export const unusedBytes = (row) => (row.whole || row.used_bytes === null || row.members ? 0 : Math.max(0, row.mem_bytes * row.gpus - row.used_bytes));

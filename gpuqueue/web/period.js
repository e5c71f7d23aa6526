// Periods and durations as people type them: 7d, 12h, 2026-11-01.

const LENGTHS = /** @type {Record<string, number>} */ ({ s: 1, m: 60, h: 3600, d: 86400, w: 7 * 86400 });

/** The periods that can be chosen, the longest last. */
export const PERIODS = [["1d", "last day"], ["7d", "last 7 days"], ["30d", "last 30 days"], ["90d", "last 90 days"], ["365d", "last year"]];

/**
 * The periods that have runs, up to the first one that has all of them. All, if that is not known.
 * @param {string | null} firstAt when the first job was submitted
 * @param {string | null} lastAt when the last one ended
 * @param {number} nowMs
 */
export function withRuns(firstAt, lastAt, nowMs) {
  if (!firstAt || !lastAt) return PERIODS;
  const [first, last] = [firstAt, lastAt].map((each) => (nowMs - new Date(each).getTime()) / 1000);
  const ages = PERIODS.map(([value]) => secondsOf(value) ?? 0);
  return PERIODS.filter((_, place) => last < ages[place] && (place === 0 || ages[place - 1] < first));
}

/** The seconds of 90s, 1h30m or 2d; null if the text is no duration. @param {string} text */
export function secondsOf(text) {
  const words = text.trim().toLowerCase();
  if (!/^(\d+(\.\d+)?[smhdw])+$/.test(words)) return null;
  return [...words.matchAll(/(\d+(?:\.\d+)?)([smhdw])/g)].reduce((sum, [, number, unit]) => sum + Number(number) * LENGTHS[unit], 0);
}

/**
 * The time that a text means, as the API takes it: 7d is seven days ago, a date is its first minute here. Null if it
 * means none.
 * @param {string | undefined} text
 * @param {number} nowMs
 */
export function momentOf(text, nowMs) {
  if (!text) return null;
  const ago = secondsOf(text);
  const at = ago === null ? new Date(/^\d{4}-\d\d-\d\d$/.test(text) ? `${text}T00:00` : text) : new Date(Math.floor(nowMs / 60000) * 60000 - ago * 1000);
  return Number.isNaN(at.getTime()) ? null : at.toISOString();
}

/** The date of a moment here, as a field for dates takes it. @param {Date} at */
export function dateOf(at) {
  const two = (/** @type {number} */ number) => String(number).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

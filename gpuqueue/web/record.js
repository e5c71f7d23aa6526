// A recorded job in words: its name, how it ended, where it ran, and what it used.
import { between, deviceLabel, plural } from "./words.js";

/** @typedef {import("./history-types.js").HistoryRecord} HistoryRecord */
/** @typedef {import("./history-types.js").HistoryRun} HistoryRun */

/** @param {{id: number, member: {array_id: number, index: number} | null}} job */
export const labelOf = (job) => (job.member ? `${job.member.array_id}_${job.member.index}` : String(job.id));

/** @param {{runs: HistoryRun[]}} record @returns {HistoryRun | null} */
export const lastRun = (record) => record.runs.at(-1) ?? null;

/** How a job ended; empty if there is no more to say than its state. @param {HistoryRecord} record */
export const endingOf = ({ outcome, job }) => (outcome === "exit 0" || outcome === job.state ? "" : outcome);

/** @param {HistoryRun | null} run */
export function placeOf(run) {
  if (!run || !run.devices.length) return "";
  const names = run.devices.map(deviceLabel);
  return `${run.host} ${names.length > 4 ? plural(names.length, "device") : names.join(", ")}`;
}

/** The sum of the peaks on all devices, null if one is not known. @param {HistoryRun | null} run @returns {number | null} */
export function peakOf(run) {
  if (!run || !run.devices.length) return null;
  return run.devices.reduce((sum, each) => (sum === null || each.peak.bytes === null ? null : sum + each.peak.bytes), /** @type {number | null} */ (0));
}

/** The memory that was allocated on all devices. @param {HistoryRun | null} run */
export const allocatedOf = (run) => (run ? run.devices.reduce((sum, each) => sum + each.lease_bytes, 0) : 0);

/** The wait before the first run, in seconds; null without one. @param {HistoryRecord} record */
export function waitOf(record) {
  const first = record.runs.find((each) => each.attempt === 1);
  return first ? Math.max(0, between(record.job.submitted_at, first.claimed_at)) : null;
}

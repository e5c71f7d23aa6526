// What running jobs used while this page was open. Workers write what was before each ten seconds.

/** Samples that are kept of one run: above this, every second one goes. Runs that are kept. */
const MOST_SAMPLES = 600;
const MOST_RUNS = 30;

/** @typedef {{at: number, used: Record<string, number | null>, load: Record<string, number | null>}} Sample `at` in ms */

/** @type {Map<string, {samples: Sample[], gap: number}>} */
const runs = new Map();

/**
 * Note what a run uses now. A device whose worker is silent has no figure.
 * @param {string} run
 * @param {number} at the time of the service, in milliseconds
 * @param {import("./job-types.js").DeviceUse[]} devices
 */
export function addSample(run, at, devices) {
  const known = runs.get(run) ?? { samples: [], gap: 0 };
  runs.delete(run); // the run that is looked at is the newest, and the oldest goes
  runs.set(run, known);
  if (runs.size > MOST_RUNS) runs.delete(/** @type {string} */ (runs.keys().next().value));
  const last = known.samples[known.samples.length - 1];
  if (last && at - last.at < Math.max(1, known.gap)) return;
  /** @type {Sample} */
  const sample = { at, used: {}, load: {} };
  for (const each of devices) {
    sample.used[each.uuid] = each.silent ? null : each.used_bytes;
    sample.load[each.uuid] = each.silent ? null : each.utilisation;
  }
  known.samples.push(sample);
  if (known.samples.length > MOST_SAMPLES) {
    known.samples = known.samples.filter((_, place) => place % 2 === 0);
    known.gap = 2 * Math.max(known.gap, 1000);
  }
}

/** @param {string} run @returns {Sample[]} */
export const samplesOf = (run) => runs.get(run)?.samples ?? [];

// Calls functions of the page's modules about the history and the statistics. Prints their results as JSON.
import { decimal, failedOf, heightsOf, heldNow, ticksOf, measuredAskedBytes, peakBytes, unusedBytes, unusedGibHours, usedShare } from "../../../../gpuqueue/web/figures.js";
import { dateOf, momentOf, secondsOf, withRuns } from "../../../../gpuqueue/web/period.js";
import { endingOf, labelOf, peakOf, placeOf, waitOf } from "../../../../gpuqueue/web/record.js";
import { stepsOf } from "../../../../gpuqueue/web/timeline.js";
import { duration, percent } from "../../../../gpuqueue/web/words.js";

const GIB = 2 ** 30;
const DAY_MS = 86400 * 1000;
const NOW = Date.parse("2026-11-21T12:00:30Z");
const device = { uuid: "GPU-0", index: 0, kind: "gpu", lease_bytes: 6 * GIB, peak: { bytes: 5 * GIB } };
const run = { attempt: 1, host: "nodeA", devices: [device, { ...device, index: 1 }], claimed_at: "2026-11-21T12:01:00Z", duration_s: 60, ending: null };
const job = { id: 19, member: null, state: "failed", submitted_at: "2026-11-21T12:00:00Z", because: null };
const row = { user: "ada", mem_bytes: 6 * GIB, gpus: 2, used_bytes: 4 * GIB, whole: false, members: null };
const line = (bytes) => ({ peak: { interval_s: 0.1 }, timeline: { step_s: 0.5, bytes } });
const figures = { ended: 10, succeeded: 6, cancelled: 1, measured_byte_s: 3 * GIB * 3600, peak_byte_s: 1 * GIB * 3600 };

console.log(
  JSON.stringify({
    labels: [labelOf(job), labelOf({ ...job, member: { array_id: 17, index: 2 } })],
    endings: [["exit 0", "succeeded"], ["exit 3", "failed"], ["lost", "lost"], ["a dependency failed", "cancelled"], ["", "running"]].map(([outcome, state]) => endingOf({ outcome, job: { ...job, state }, runs: [] })),
    places: [placeOf(run), placeOf({ ...run, devices: Array(8).fill(device) }), placeOf({ ...run, devices: [{ ...device, index: null }] }), placeOf(null)],
    peaks: [peakOf(run), peakOf({ ...run, devices: [device, { ...device, peak: { bytes: null } }] }), peakOf(null)],
    waits: [waitOf({ job, runs: [run] }), waitOf({ job, runs: [] })],
    seconds: ["90s", "1h30m", " 2D ", "1.5h", "", "5", "x", "1h x"].map(secondsOf),
    moments: [momentOf("7d", NOW), momentOf("2026-11-01T09:00:00Z", NOW), momentOf("soon", NOW), momentOf("", NOW), momentOf(undefined, NOW)],
    isMidnight: new Date(momentOf("2026-11-01", NOW)).getHours() === 0 && dateOf(new Date(momentOf("2026-11-01", NOW))) === "2026-11-01",
    decimals: [0, 0.001, 0.25, 5, 12.34, 1234.5].map(decimal),
    percents: [percent(null), percent(0.256)],
    failed: failedOf(figures),
    unused: unusedGibHours(figures),
    overused: unusedGibHours({ ...figures, peak_byte_s: 9 * GIB * 3600 }),
    used: [usedShare(figures), usedShare({ ...figures, measured_byte_s: 0 })],
    // One run of 100 s has ended: 9 of 10 GiB at its peak. A job that asks for 30 GiB has run for 1 000 s and goes on.
    mixed: [peakBytes, measuredAskedBytes, usedShare].map((each) => each({ gpu_s: 1100, cpu_s: 0, held_s: 1100, asked_byte_s: 31000 * GIB, measured_s: 100, measured_byte_s: 1000 * GIB, peak_byte_s: 900 * GIB })),
    heights: [heightsOf([0.004, 0, null], duration, 1), heightsOf([0.3, 30, 60, null], duration, 80), heightsOf([], duration, 1)],
    ticks: [[0, 1, true], [3, 1, true], [4, 1, true], [70, 1, true], [5 * 3600, 3600, false], [900, 3600, false], [90, null, false], [9000, null, false], [0, null, false]].map((each) => ticksOf(...each)),
    periods: [[0.2, 0], [5, 0], [40, 35], [800, 0], [800, 500]].map(([first, last]) => withRuns(new Date(NOW - first * DAY_MS).toISOString(), new Date(NOW - last * DAY_MS).toISOString(), NOW).map(([value]) => value)),
    allPeriods: withRuns(null, null, NOW).length,
    held: Object.fromEntries(heldNow([row, row, { ...row, user: "bob", used_bytes: null }, { ...row, user: "eve", whole: true }])),
    steps: [[5, null, null, null, null, 7], [5, null, null, null, null, null, 7]].map((bytes) => stepsOf(line(bytes), 3).map(([, value]) => value)),
    unusedNow: [row, { ...row, used_bytes: 20 * GIB }, { ...row, used_bytes: null }].map(unusedBytes),
  }),
);

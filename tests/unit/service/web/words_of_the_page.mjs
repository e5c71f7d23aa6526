// Calls functions of the page's modules, which need no browser. Prints their results as JSON.
import { bytesOf, duration, ownBefore, placeOf, reasonOf, size } from "../../../../gpuqueue/web/words.js";

const place = { ahead: 3, words: "3 jobs before it", start_at: null, about_at: null, reserved: false, never: false };
const row = { state: "queued", reason: "memory", mem_bytes: 20 * 2 ** 30, gpus: 2, whole: false, begins_at: null, waits: "no room now" };
const waits = (id, more = {}) => ({ id, user: "ada", priority: "normal", state: "queued", reason: "memory", ...more });
const line = [waits(3), waits(4, { reason: "dependency" }), waits(5, { priority: "low" }), waits(6, { state: "held" }), waits(8), waits(9)];
console.log(
  JSON.stringify({
    sizes: [0, 1023, 1024, 1.5 * 2 ** 30, 20 * 2 ** 30, 300 * 2 ** 30, null].map(size),
    bytes: ["20G", " 20 gb", "1.5t", "512m", "20", "20 GiB", "x", "", "-1"].map(bytesOf),
    durations: [0, 0.4, 59, 60, 61, 601, 3661, 90061].map(duration),
    places: [place, { ...place, start_at: "2026-11-29T23:59:00Z" }, { ...place, about_at: "2026-11-29T23:59:00Z" }].map(placeOf),
    before: [2, 3, 1].map((count) => ownBefore(line, waits(9), count).map((each) => each.id)),
    reasons: [row, { ...row, waits: null }, { ...row, waits: "it has a start time", begins_at: "2026-11-29T23:59:00Z" }].map(reasonOf),
  }),
);

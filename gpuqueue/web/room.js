// Whether and when there is room on the devices for another job, by the runs and the reservations on each.
import { clock, deviceLabel, size } from "./words.js";

/** @typedef {import("./types.js").DeviceView} Device */
/** @typedef {{at: number | null, after: number | null}} Room `at`: 0 is now, null unknown. `after`: a job that goes first */

/** What a device could allocate if it were empty. @param {Device} device */
const capacity = (device) => device.total_bytes - device.headroom_bytes - (device.external_bytes ?? device.total_bytes);

/** What it could allocate if nothing outside of the queue held memory of it. @param {Device} device */
const most = (device) => device.total_bytes - device.headroom_bytes;

/** Whether a device takes jobs at all. @param {Device} device */
const serves = (device) => device.silent_s === null && !device.drained && !device.trouble;

/** @param {string | null} at */
const moment = (at) => (at === null ? Infinity : new Date(at).getTime());

/**
 * The devices with the probable ends of their runs, by their progress: not after their time limits.
 * @param {Device[]} devices
 * @param {Record<number, import("./types.js").Progress>} progress
 */
export const withProgress = (devices, progress) => devices.map((device) => ({
  ...device,
  runs: device.runs.map((run) => {
    const end = progress[run.job_id]?.ends_at ?? null;
    return end === null ? run : { ...run, about_at: new Date(Math.min(moment(end), moment(run.ends_at))).toISOString() };
  }),
}));

/** When a run has ended, probably or at the latest. @param {import("./types.js").DeviceRun} run */
const endOf = (run) => run.about_at ?? run.ends_at ?? null;

/** Whether the end of a run on a device is known by its progress. @param {Device} device */
export const isProbable = (device) => device.runs.some((each) => Boolean(each.about_at));

/** When a device is empty: by the time limits of its runs, or at about when by their progress; null if that is unknown. @param {Device} device @returns {{at: string, isProbable: boolean} | null} */
export function emptyAt(device) {
  const { runs, free_at: at } = device;
  if (!runs.length) return null;
  if (at && !isProbable(device)) return { at, isProbable: false };
  const ends = runs.map((each) => moment(endOf(each)));
  return ends.every(Number.isFinite) ? { at: new Date(Math.max(...ends)).toISOString(), isProbable: true } : null;
}

/** When the runs on a device leave so much room: 0 is now, null unknown. @param {Device} device @param {number} bytes */
function leftByRuns(device, bytes) {
  if (device.free_bytes >= bytes) return 0;
  if (!serves(device) || capacity(device) < bytes) return null;
  const held = device.runs.map((each) => ({ bytes: Math.max(each.allocated_bytes, each.used_bytes), at: moment(endOf(each)) }));
  let free = capacity(device) - held.reduce((sum, each) => sum + each.bytes, 0);
  let places = device.slots - held.length;
  for (const run of held.sort((one, other) => one.at - other.at)) {
    free += run.bytes;
    places += 1;
    if (free >= bytes && places > 0) return Number.isFinite(run.at) ? run.at : null;
  }
  return null;
}

/**
 * When a device has room for another job on so many devices. A job that a device is reserved for takes its memory at its
 * start and holds it until its time limit; beside it only a job on one device may start.
 * @param {Device} device
 * @param {number} bytes
 * @param {number} count
 * @returns {Room}
 */
export function roomOn(device, bytes, count) {
  const room = roomBeforeEnd(device, bytes, count);
  return room.at !== null && room.at >= Math.min(moment(device.ends_at), givenFrom(device)) ? { ...room, at: null } : room;
}

/** From when people have reserved the device for somebody: 0 is now. The reader may be another. @param {Device} device */
const givenFrom = (device) => Math.min(...device.calendar.map((each) => (moment(each.begins_at) <= Date.now() ? 0 : moment(each.begins_at))));

/** The same, without regard to the end of the device. @param {Device} device @param {number} bytes @param {number} count @returns {Room} */
function roomBeforeEnd(device, bytes, count) {
  const at = leftByRuns(device, bytes);
  if (device.reserved_for === null || (count === 1 && (device.beside_bytes ?? 0) >= bytes)) return { at, after: null };
  const until = moment(device.reserved_until);
  return { at: at === null || until === Infinity ? null : Math.max(at, until), after: device.reserved_for };
}

/** @param {number[]} jobs */
const afterWords = (jobs) => `after ${jobs.length > 1 ? "jobs" : "job"} ${jobs.join(" and ")}, for which ${jobs.length > 1 ? "devices there are" : "a device there is"} reserved`;

/**
 * @param {Device[]} devices
 * @param {number} bytes
 * @param {number} count
 * @param {number} waiting the number of jobs that wait already
 */
export function answer(devices, bytes, count, waiting) {
  const ours = devices.filter((each) => each.kind !== "slurm"); // an engine has no memory of this site
  const gpus = ours.some((each) => each.kind !== "cpu") ? ours.filter((each) => each.kind !== "cpu") : ours;
  const hosts = [...new Set(gpus.map((each) => each.host))];
  /** @param {(device: Device) => boolean} fits */
  const hostsWith = (fits) =>
    hosts.map((host) => gpus.filter((each) => each.host === host && fits(each))).filter((found) => found.length >= count);
  const now = hostsWith((each) => roomOn(each, bytes, count).at === 0);
  if (now.length) {
    const places = now.flatMap((found) => `${found[0].host} ${found.slice(0, 6).map(deviceLabel).join(", ")}${found.length > 6 ? " and more" : ""}`);
    return { is: "yes", words: `Yes: ${places.slice(0, 4).join("; ")}${places.length > 4 ? "; and other hosts" : ""}.${waiting ? ` Jobs that wait already (${waiting.toLocaleString()}) may go first.` : ""}` };
  }
  const later = hostsWith((each) => roomOn(each, bytes, count).at !== null).map((found) => {
    const rooms = found.map((each) => roomOn(each, bytes, count)).sort((one, other) => Number(one.at) - Number(other.at)).slice(0, count);
    return { host: found[0].host, at: Number(rooms[count - 1].at), after: holdersOf(rooms), isProbable: found.some(isProbable) };
  });
  const [first] = later.sort((one, other) => one.at - other.at);
  if (first) {
    const by = `n ${first.host} ${first.isProbable ? "at about" : "by"} ${clock(new Date(first.at).toISOString())}`;
    const when = first.after.length ? afterWords(first.after) : first.isProbable ? "by the progress of the jobs there" : "when jobs there reach their time limits";
    if (!waiting) return { is: "later", words: `Not now. O${by}, ${when}.` };
    const go = waiting === 1 ? "1 job waits already and goes" : `${waiting.toLocaleString()} jobs wait already and go`;
    return { is: "later", words: `Not now, and when is unknown: ${go} first. Without ${waiting === 1 ? "it" : "them"} o${by}, ${when}.` };
  }
  const ever = hostsWith((each) => most(each) >= bytes);
  if (ever.length) {
    const after = holdersOf(ever.flat().map((each) => roomOn(each, bytes, count)));
    return { is: "later", words: `Not now${after.length ? `, and on some devices only ${afterWords(after)}` : ""}. When is unknown: jobs without a time limit or processes outside of the queue are there, or the devices take no jobs.` };
  }
  const largest = Math.max(0, ...gpus.map(most));
  return { is: "no", words: count > 1 ? `No host has ${count} devices that can give so much.` : `No device here can give so much: the largest could give ${size(largest)}.` };
}

/** @param {Room[]} rooms */
const holdersOf = (rooms) => [...new Set(rooms.map((each) => each.after))].filter((each) => each !== null).sort((one, other) => one - other);

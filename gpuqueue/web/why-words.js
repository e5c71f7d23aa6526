// Why a job waits, in sentences: when it may start, what is before it, and what is in the way on each device.
import { labelOf } from "./record.js";
import { deviceLabel, clock, duration, plural, size } from "./words.js";

/** @typedef {import("./job-types.js").Why} Why */
/** @typedef {import("./job-types.js").Verdict} Verdict */
/** @typedef {import("./job-types.js").Explanation} Explanation */

/** The obstacles of a device, the nearest to a start first. @type {Record<string, string>} */
const OBSTACLES = {
  fits: "has room",
  not_yet: "has room",
  limit: "has room, a limit does not",
  alone: "has room, but its host has too few like it",
  reserved: "reserved",
  slots: "runs as many jobs as it may",
  memory: "too little free memory",
  occupied: "in use",
  exclusive: "taken by one job alone",
  silent: "its worker is silent",
  drained: "drained",
  too_large: "the job is too large to take it alone",
  too_small: "too small",
  part: "a MIG instance",
  excluded: "its host could not start the job",
  model: "another type",
  named: "not named by the job",
  kind: "another kind of device",
  pool: "another pool",
};
const ORDER = Object.keys(OBSTACLES);
const NEVER = new Set(["pool", "kind", "named", "model", "part", "too_small", "too_large", "excluded"]);
const MEASURES = /** @type {Record<string, (value: number) => string>} */ ({ running_mem: size });

/** @param {Why} why @param {number} id */
export const nameOf = (why, id) => {
  const other = why.others[id];
  return other ? `job ${labelOf(other)} (${other.spec.name}, ${other.spec.account.name})` : `job ${id}`;
};

/** @param {Why} why @param {string} uuid @param {string} [host] */
export const placeName = (why, uuid, host = "") => {
  const status = why.devices[uuid];
  return `${host}${host ? " " : ""}${status ? deviceLabel({ ...status.device, uuid }) : uuid}`;
};

/** @param {number} ms */
const at = (ms) => clock(new Date(ms).toISOString());

/** What one run in the way will do, as far as it is known. @param {Why} why @param {number} id */
function untilItEnds(why, id) {
  const usual = why.usual[id];
  const limit = why.explanation?.devices.flatMap((each) => each.runs).find((each) => each.job_id === id)?.ends_ms;
  if (limit) return `${nameOf(why, id)} ends by ${at(limit)} at the latest (time limit)`;
  if (!usual) return `${nameOf(why, id)} has no time limit`;
  return `${nameOf(why, id)} has no time limit; its runs usually take ${duration(usual.median_s)}, nine of ten end within ${duration(usual.p90_s)}`;
}

/**
 * A sentence in parts: those that name a job have its label, so that they can be links.
 * @param {Why} why
 * @param {string} text
 * @returns {{words: string, job?: string}[]}
 */
export function linkedParts(why, text) {
  const names = Object.values(why.others).map((each) => ({ words: nameOf(why, each.id), job: labelOf(each) }));
  /** @type {{words: string, job?: string}[]} */
  const parts = [];
  let rest = text;
  while (rest) {
    const [first] = names.map((each) => ({ ...each, place: rest.indexOf(each.words) })).filter((each) => each.place >= 0).sort((one, other) => one.place - other.place);
    if (!first) break;
    if (first.place) parts.push({ words: rest.slice(0, first.place) });
    parts.push({ words: first.words, job: first.job });
    rest = rest.slice(first.place + first.words.length);
  }
  return rest ? [...parts, { words: rest }] : parts;
}

/**
 * What keeps the job from a device. If that is reserved for another job, `holder` is its label, and the words end in "for".
 * @param {Why} why
 * @param {Verdict} verdict
 * @returns {{words: string, holder: string | null}}
 */
function stateOf(why, verdict) {
  const words = obstacleOn(why, verdict);
  const id = verdict.reserved_for ?? null;
  if (id === null) return { words, holder: null };
  if ([why.job.id, why.job.member?.array_id].includes(id)) return { words: `${words}; reserved for this job`, holder: null };
  const other = why.others[id];
  return { words: verdict.obstacle === "reserved" ? "reserved for" : `${words}; reserved for`, holder: other ? labelOf(other) : String(id) };
}

/** When it may start. @param {Why} why @param {Explanation} explanation @returns {string[]} */
function startLines(why, explanation) {
  const { start, devices } = explanation;
  if (!start) {
    const isNever = devices.length > 0 && devices.every((each) => NEVER.has(each.obstacle));
    return [isNever ? "no device here can ever run it: see the reasons below, and edit the job" : devices.length ? "no device can have room for it as things are" : "no worker serves a device now"];
  }
  const host = devices.find((each) => each.device === start.devices[0])?.host ?? "";
  const where = `${host} ${start.devices.map((each) => placeName(why, each)).join(" and ")}`.trim();
  if (!start.blockers.length && !start.limited) {
    return [start.rivals ? `there is room on ${where}, but ${plural(start.rivals, "earlier job")} may take it` : `there is room on ${where}: it starts with its turn`];
  }
  const blockers = start.blockers.map((each) => untilItEnds(why, each));
  if (start.behind !== null) {
    const room = start.room_ms === null ? "" : `, which has room by ${at(start.room_ms)}`;
    return [`after ${nameOf(why, start.behind)}, for which ${where} is reserved${room}`, ...blockers];
  }
  if (start.at_ms !== null) return [`by ${at(start.at_ms)} on ${where}, unless other jobs go before it`, ...blockers];
  if (start.room_ms !== null) return [`there is room by ${at(start.room_ms)} on ${where}, unless ${start.rivals === 1 ? "the earlier job takes" : `one of ${start.rivals} earlier jobs takes`} it`, ...blockers];
  return [`not known: it starts on ${where} when what is in the way has ended`, ...blockers];
}

/** What is in the way on a device. @param {Why} why @param {Verdict} verdict */
function obstacleOn(why, verdict) {
  const trouble = verdict.obstacle === "slots" || verdict.obstacle === "memory" ? why.devices[verdict.device]?.trouble : null;
  return trouble ? `closed: ${trouble}` : (verdict.cannot_start ?? OBSTACLES[verdict.obstacle] ?? verdict.obstacle);
}

/** @param {Explanation} explanation @param {string} user */
function orderLine(explanation, user) {
  const before = [
    explanation.higher ? `${plural(explanation.higher, "job")} with a higher priority` : "",
    explanation.theirs ? `${plural(explanation.theirs, "job")} of ${explanation.users_before === 1 ? "a user" : `${explanation.users_before} users`} with less usage` : "",
    explanation.own_before ? `${plural(explanation.own_before, "earlier job")} of ${user}` : "",
  ].filter(Boolean);
  return before.length ? `Before it: ${before.join(", ")}.` : "No job is before it.";
}

/**
 * Why a job waits: when it may start, in which order, and the devices, the nearest ones first.
 * @param {Why} why
 * @returns {{start: string[], order: string, limits: string[], devices: (Verdict & {words: string, holder: string | null})[], left: number}}
 */
export function whyWords(why, most = 6) {
  const { explanation, job } = why;
  if (!explanation) return { start: [], order: "", limits: [], devices: [], left: 0 };
  const awaited = job.awaits.map((each) => {
    const how = /** @type {Record<string, string>} */ ({ ok: "has succeeded", any: "has ended", fail: "has failed" })[each.condition] ?? "has ended";
    const other = why.others[each.job_id];
    return `not before ${nameOf(why, each.job_id)} ${how}${other ? `: it is ${other.state}` : ""}`;
  });
  const held = job.state === "held" ? ["not before somebody releases it"] : [];
  const begins = job.begins_at ? [`not before ${clock(job.begins_at)}`] : [];
  const array = job.reason === "array_limit" ? ["not before a member of its array has ended: that has reached its concurrency limit"] : [];
  const waits = [...held, ...awaited, ...begins, ...array];
  const sorted = [...explanation.devices].sort((one, other) => ORDER.indexOf(one.obstacle) - ORDER.indexOf(other.obstacle) || other.available_bytes - one.available_bytes);
  const shown = sorted.slice(0, most).map((each) => ({ ...each, ...stateOf(why, each) }));
  return {
    start: waits.length ? waits : startLines(why, explanation),
    order: orderLine(explanation, job.spec.account.name),
    limits: explanation.limits.map((each) => {
      const shownAs = MEASURES[each.measure] ?? String;
      return `${each.whose} has ${shownAs(each.used)} of ${shownAs(each.most)} (${each.measure.replaceAll("_", " ")}), and this job asks for ${shownAs(each.asked)}`;
    }),
    devices: shown,
    left: sorted.length - shown.length,
  };
}

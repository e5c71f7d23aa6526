// What a waiting job needs and which devices have it, in sentences.
import { deviceLabel, size } from "./words.js";

/** @typedef {import("./job-types.js").Why} Why */
/** @typedef {import("./job-types.js").Verdict} Verdict */

/** Obstacles of a device that has what the job needs on it. */
const HAS_ROOM = new Set(["fits", "not_yet", "limit", "alone"]);
/** Obstacles of a device on which the job can run when jobs there have ended. */
const IN_USE = new Set(["memory", "occupied", "slots", "exclusive", "reserved"]);
/** Most devices that are named. */
const MOST_NAMED = 6;
const MOST_RESERVED = 2;
const NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight"];

/** @param {number} count */
const number = (count) => NUMBERS[count] ?? String(count);

/** @param {string[]} words */
const list = (words) => (words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}` : (words[0] ?? ""));

/** Devices by their hosts: GPU 0 and GPU 1 of nodeA. @param {Why} why @param {Verdict[]} found */
function placesOf(why, found) {
  if (found.length > MOST_NAMED) return `${found.length} devices`;
  const hosts = [...new Set(found.map((each) => each.host))];
  /** @param {Verdict} each */
  const name = ({ device }) => (why.devices[device] ? deviceLabel({ ...why.devices[device].device, uuid: device }) : device);
  return list(hosts.map((host) => `${list(found.filter((each) => each.host === host).map(name))} of ${host}`));
}

/** What a job asks for. @param {import("./job-types.js").Spec} spec */
function needOf({ placement, gpus, mem_bytes: bytes, device, pool }) {
  const kind = device === "cpu" ? "the CPU of a host" : gpus > 1 ? `${number(gpus)} devices of one host` : "one device";
  const where = [placement.models.length ? ` of the type ${placement.models.join(" or ")}` : "", pool ? ` in the pool ${pool}` : ""].join("");
  if (placement.whole) return `${kind}${where} for itself alone`;
  return `${size(bytes)} on ${kind}${where}`;
}

/** What is known if no device has room. @param {Why} why @param {Verdict[]} devices */
function noRoom(why, devices) {
  const { placement, mem_bytes: bytes } = why.job.spec;
  if (placement.whole) return "No device is empty now.";
  const free = devices.filter((each) => IN_USE.has(each.obstacle));
  if (free.some((each) => each.available_bytes >= bytes)) return "No device can take it now.";
  const [best] = free.sort((one, other) => other.available_bytes - one.available_bytes);
  const most = best && best.available_bytes > 0 ? `: the most is ${size(best.available_bytes)}, on ${placesOf(why, [best])}` : "";
  return `No device has that free now${most}.`;
}

/** The devices that have room, and wait for another job. @param {Why} why @param {Verdict[]} devices */
function reservedOf(why, devices) {
  const { job } = why;
  const found = devices.filter((each) => each.obstacle === "reserved" && each.reserved_for && each.reserved_for !== job.id && each.available_bytes >= job.spec.mem_bytes);
  return found.slice(0, MOST_RESERVED).map((each) => ` ${placesOf(why, [each])} is reserved for job ${each.reserved_for}.`).join("");
}

/** Which devices have what a job needs now. @param {Why} why @param {Verdict[]} devices */
function roomOf(why, devices) {
  const { gpus } = why.job.spec;
  const found = devices.filter((each) => HAS_ROOM.has(each.obstacle));
  if (!found.length) return noRoom(why, devices);
  const has = found.length > 1 ? "have" : "has";
  const hosts = new Map();
  for (const { host } of found) hosts.set(host, (hosts.get(host) ?? 0) + 1);
  if (Math.max(...hosts.values()) >= gpus) return `${placesOf(why, found)} ${has} that.`;
  return `Only ${placesOf(why, found)} ${has} that${hosts.size > 1 ? `, and no host has ${number(gpus)} of them` : ""}.`;
}

/** Most jobs before one that are named. */
export const MOST_BEFORE = 6;
/** Reasons of jobs that wait for something else than a device, and so are before nobody. */
const NOT_IN_LINE = new Set(["dependency", "begin", "retry", "requeue", "array_limit"]);

/**
 * The waiting jobs of its user before a job, if these rows have all of them: the service counts them, and a job that was
 * moved to the front is counted otherwise. Else none.
 * @param {import("./types.js").QueueRow[]} rows the waiting jobs of the user
 * @param {import("./types.js").QueueRow} row
 * @param {number} count how many there are
 */
export function ownBefore(rows, row, count) {
  const found = rows.filter((each) => each.id < row.id && each.user === row.user && each.priority === row.priority && each.state === "queued" && !NOT_IN_LINE.has(each.reason ?? ""));
  return found.length === count && count <= MOST_BEFORE ? found : [];
}

/**
 * What a job that waits for a device needs, and who has room; null for a job that waits for something else.
 * @param {Why} why
 */
export function needWords(why) {
  const { job, explanation } = why;
  if (!explanation?.devices.length || job.state !== "queued" || job.awaits.length || job.begins_at || job.reason === "array_limit") return null;
  return `It needs ${needOf(job.spec)}. ${roomOf(why, explanation.devices)}${reservedOf(why, explanation.devices)}`;
}

// Values in words: sizes, durations and times.

import { NO_TURN } from "./job-states.js";

const UNITS = ["B", "K", "M", "G", "T"];

/** A size as the command line writes it: 6G, 1.5G. @param {number | null | undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "unknown";
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const text = value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, "");
  return unit ? `${text}${UNITS[unit]}` : `${text}B`;
}

/** The bytes of a text such as 20G, 20 GB or 1.5t; null if it is none. @param {string} text */
export function bytesOf(text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*$/i.exec(text);
  if (!found) return null;
  const unit = found[2] ? "kmgt".indexOf(found[2].toLowerCase()) + 1 : 3;
  return Math.round(Number(found[1]) * 1024 ** unit);
}

/** From this duration on, seconds are left out. */
const LONG_S = 600;

/** A duration in its two largest units: 2d 3h, 25m, 5m 40s. @param {number} seconds */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const parts = /** @type {[number, string][]} */ ([
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "m"],
    [whole < LONG_S ? whole % 60 : 0, "s"],
  ]);
  const first = parts.findIndex(([count]) => count > 0);
  if (first < 0) return "0s";
  return parts
    .slice(first, first + 2)
    .filter(([count]) => count > 0)
    .map(([count, unit]) => `${count}${unit}`)
    .join(" ");
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

/** A moment in the viewer's time zone: the clock for today, else with the day. @param {string} iso */
export function clock(iso) {
  const at = new Date(iso);
  return (at.toDateString() === new Date().toDateString() ? CLOCK : DAY).format(at);
}

/** The same moment in full, for a title. @param {string} iso */
export const fullTime = (iso) => FULL.format(new Date(iso));

/** Seconds from a moment until another. @param {string} from @param {string | number | Date} until */
export const between = (from, until) => (new Date(until).getTime() - new Date(from).getTime()) / 1000;

/** As people type them, the lowest first. */
export const PRIORITIES = ["low", "normal", "high", "urgent"];

/** Why a job does not run, in words. @param {import("./types.js").QueueRow} row */
export const reasonOf = ({ waits, begins_at: begins }) => (waits && begins ? `${waits}, not before ${clock(begins)}` : (waits ?? ""));

/** Where a waiting job is in line. @param {import("./types.js").JobPlace} place */
export function placeOf({ words, start_at: start, about_at: about }) {
  if (about && about !== start) return `${words}; starts at about ${clock(about)}`;
  return start ? `${words}; starts by ${clock(start)}` : words;
}

/** For how long a run has used none of its devices. @param {string} since @param {number} now in milliseconds */
export const idleWords = (since, now) => `idle for ${duration(between(since, now))}`;

/** @param {number} count @param {string} one @param {string} [many] */
export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString()} ${count === 1 ? one : many}`;

/** A device's short name: its UUID if its place on the host is not known. @param {{kind: string | null, index: number | null, uuid: string}} device */
export const deviceLabel = ({ kind, index, uuid }) => (kind === "cpu" ? "CPU" : kind === "slurm" ? "Slurm" : index === null ? uuid : `${kind === "simulated" ? "sim" : "GPU"} ${index}`);

/** @param {number | null} share @param {any} [unknown] what is shown if it is not known */
export const percent = (share, unknown = "unknown") => (share === null ? unknown : `${Math.round(share * 100)} %`);

/** Most jobs before one that are named. */
export const MOST_BEFORE = 6;

/**
 * The waiting jobs of its user before a job, if these rows have all of them: the service counts them, and a job that was
 * moved to the front is counted otherwise. Else none.
 * @param {import("./types.js").QueueRow[]} rows the waiting jobs of the user
 * @param {import("./types.js").QueueRow} row
 * @param {number} count how many there are
 */
export function ownBefore(rows, row, count) {
  const found = rows.filter((each) => each.id < row.id && each.user === row.user && each.priority === row.priority && each.state === "queued" && !NO_TURN.has(each.reason ?? ""));
  return found.length === count && count <= MOST_BEFORE ? found : [];
}

/** A number with four digits at most. @param {number} value */
export const figure = (value) => String(Number(value.toPrecision(4)));

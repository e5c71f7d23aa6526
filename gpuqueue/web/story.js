// The story of a job as a timeline: each step, and each wait between two steps.
import { isEnd, isFromPage, startWords, waitWords } from "./job-words.js";
import { between, clock, deviceLabel, duration, size } from "./words.js";

/** @typedef {import("./job-types.js").JobEvent} JobEvent */
/** @typedef {import("./job-types.js").JobView} JobView */
/** @typedef {import("./job-types.js").Run} Run */
/** @typedef {"step" | "wait" | "run" | "good" | "bad" | "note"} Kind */
/** @typedef {{at: string, kind: Kind, words: string, detail: string, job?: number}} Entry `job` is another job that it is about */

/** Waits that are shorter say nothing, in seconds. */
const SHORT_S = 1;
/** What the service writes in place of a text that the caller may not see. */
const HIDDEN = "(hidden)";

/** @param {string} at @param {Kind} kind @param {string} words @param {string} [detail] @param {number} [job] @returns {Entry} */
const entry = (at, kind, words, detail = "", job = undefined) => ({ at, kind, words, detail, job });

/** @param {Run} run */
const placesOf = (run) => `${run.host}, ${run.devices.map(deviceLabel).join(" and ")}`;

/** @param {Run} run */
function endOf(run) {
  const ending = /** @type {NonNullable<Run["ending"]>} */ (run.ending);
  const peaks = run.devices.map((each) => each.peak.bytes);
  const peak = peaks.length && peaks.every((each) => each !== null) ? `, peak ${size(Math.max(.../** @type {number[]} */ (peaks)))}${peaks.length > 1 ? " on one device" : ""}` : "";
  const isGood = ending.kind === "exited" && ending.exit_code === 0;
  return { kind: /** @type {Kind} */ (isGood ? "good" : "bad"), words: `run ${run.attempt} ended: ${ending.words}`, detail: `${run.duration_s === null ? "" : `after ${duration(run.duration_s)}`}${peak}`.replace(/^, /, "") };
}

/** Follows what a job waits for, and since when. */
class Waits {
  constructor() {
    /** @type {string | null} */
    this.since = null;
    /** @type {string | null} */
    this.reason = null;
  }

  /** @param {string} at @param {string | null} reason */
  begin(at, reason) {
    this.since = at;
    this.reason = reason;
  }

  /** The wait that ends now, if it was one. @param {string} at @returns {Entry[]} */
  end(at) {
    const since = this.since;
    this.since = null;
    if (since === null || between(since, at) < SHORT_S) return [];
    return [entry(since, "wait", `waited ${duration(between(since, at))} ${waitWords(this.reason)}`)];
  }
}

/** Steps that need no data but their words. @type {Record<string, string>} */
const PLAIN = {
  ready: "what it waited for is over",
  edit: "the request was changed",
  restore: "restored, because the store or the history had lost it",
  adopt: "another worker took over the run",
  park: "the worker went down, and the run goes on without it",
};
const HELD_AGAIN = ["hold", "release", "ready", "edit", "restore"];
/** Why a job is queued again after a run. @type {Record<string, string>} */
const AGAIN = { retry: "it is retried after a pause", requeue: "it asked to be run again", lost_too_often: "its runs were lost too often", requeued_too_often: "it asked for that too often" };

/** What the history notes at the time of an event. @param {JobView} view @param {JobEvent} event */
const noteAt = (view, event) => view.record.notes.find((each) => each.at === event.at && each.attempt === event.attempt)?.text;

/** @param {JobEvent} event @returns {Entry[]} */
function marks(event) {
  const { add, remove, note } = event.fields;
  const words = [
    add ? `tagged ${add.replaceAll(",", ", ")}` : "",
    remove ? `no longer tagged ${remove.replaceAll(",", ", ")}` : "",
    note === undefined ? "" : note ? "a note was written" : "the note was removed",
  ];
  return words.filter(Boolean).map((each) => entry(event.at, "note", each));
}

/** @param {JobEvent} event @param {Run | undefined} run @param {JobView} view @returns {Entry[]} */
function stepOf(event, run, view) {
  const { at, act, fields, state } = event;
  const account = view.record.job.spec.account;
  if (act === "submit") return [entry(at, "step", `submitted by ${account.name}`, `${isFromPage(view.record.job.spec) ? "from the web page " : ""}on ${account.host}`)];
  if (act === "claim") return [entry(at, "run", `run ${event.attempt} claimed by ${fields.host ?? "a worker"}`, startWords(fields.start))];
  if (act === "started") return [entry(at, "run", `run ${event.attempt} started`, run ? placesOf(run) : "")];
  if (act === "note" || act === "idle") return [entry(at, "note", fields.detail ?? "a note")];
  if (act === "release_claim") return [entry(at, "bad", "the worker gave the claim back", fields.detail ?? "")];
  if (act === "lose") return [entry(at, "bad", `run ${event.attempt} was lost`, fields.detail ?? "")];
  if (act === "finish") {
    const end = run?.ending ? endOf(run) : { kind: /** @type {Kind} */ (state === "succeeded" ? "good" : "bad"), words: `run ${event.attempt} ended`, detail: "" };
    const noted = noteAt(view, event);
    const again = isEnd(state) ? [] : [entry(at, "step", state === "held" ? "held" : "queued again", AGAIN[event.reason ?? ""] ?? "")];
    return [entry(at, end.kind, end.words, end.detail), ...(noted ? [entry(at, "note", noted)] : []), ...again];
  }
  if (act === "promote") return [entry(at, "note", noteAt(view, event) ?? "promoted to a higher priority, because it has waited long")];
  if (act === "preempt") return [entry(at, "bad", "preempted", fields.deadline ? `it must end by ${clock(new Date(Number(fields.deadline)).toISOString())}` : "", Number(fields.by) || undefined)];
  if (act === "cancel") return [entry(at, "bad", state === "cancelling" ? "a cancel was asked for" : "cancelled", fields.because ?? "")];
  if (act === "hold") return [entry(at, "step", "held")];
  if (act === "release") return [entry(at, "step", "released")];
  if (act === "move") return [entry(at, "step", fields.front ? "moved to the front of its user's jobs" : "moved back to its place")];
  if (act === "mark") return marks(event);
  if (act === "array") return "began" in fields ? [entry(at, "run", "the first member began")] : isEnd(state) ? [entry(at, state === "succeeded" ? "good" : "bad", `all members have ended: ${state}`)] : [];
  return PLAIN[act] ? [entry(at, "step", PLAIN[act])] : [];
}

/** The story from its events. @param {JobView} view @param {JobEvent[]} events @returns {Entry[]} */
function fromEvents(view, events) {
  const waits = new Waits();
  const runs = new Map(view.record.runs.map((each) => [each.attempt, each]));
  /** @type {Entry[]} */
  const found = [];
  for (const event of events) {
    const isWaiting = ["queued", "held"].includes(event.state);
    if (event.act === "claim" || isEnd(event.state) || HELD_AGAIN.includes(event.act)) found.push(...waits.end(event.at));
    found.push(...stepOf(event, runs.get(event.attempt), view));
    if (isWaiting && (waits.since === null || HELD_AGAIN.includes(event.act))) waits.begin(event.at, event.state === "held" ? (event.reason ?? "held") : event.reason);
  }
  return found;
}

/** The story from the runs alone, for who may not see the events. @param {JobView} view @returns {Entry[]} */
function fromRuns(view) {
  const { job, runs, notes } = view.record;
  const waits = new Waits();
  const found = [entry(job.submitted_at, "step", `submitted by ${job.spec.account.name}`)];
  waits.begin(job.submitted_at, null);
  for (const run of runs) {
    found.push(...waits.end(run.claimed_at));
    found.push(entry(run.claimed_at, "run", `run ${run.attempt} claimed by ${run.host}`, startWords(run.start_kind)));
    if (run.started_at) found.push(entry(run.started_at, "run", `run ${run.attempt} started`, placesOf(run)));
    for (const each of notes.filter((note) => note.attempt === run.attempt && note.text !== HIDDEN)) found.push(entry(each.at, "note", each.text));
    if (run.ending && run.ended_at) {
      const end = endOf(run);
      found.push(entry(run.ended_at, end.kind, end.words, end.detail));
      waits.begin(run.ended_at, null);
    }
  }
  if (job.ended_at && !runs.some((each) => each.ended_at === job.ended_at)) found.push(entry(job.ended_at, job.state === "succeeded" ? "good" : "bad", job.state, job.because ?? ""));
  return found;
}

/**
 * The story of a job, the oldest step first. The wait that goes on is no part of it.
 * @param {JobView} view
 * @param {JobEvent[] | null} events null for who may not see them
 */
export function storyOf(view, events) {
  return events?.length ? fromEvents(view, events) : fromRuns(view);
}

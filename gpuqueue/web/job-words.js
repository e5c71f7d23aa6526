// One job in words: its state, its endings, what it asks for, and what each of its steps was.
import { STATES, duration, plural, size } from "./words.js";

/** @typedef {import("./job-types.js").Ending} Ending */
/** @typedef {import("./job-types.js").Job} Job */

/** @type {Record<string, string>} */
const ENDED = { succeeded: "succeeded", failed: "failed", cancelled: "cancelled", lost: "lost" };
export const SIGNALS = /** @type {Record<number, string>} */ ({
  1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
  10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ",
});

/** @param {string | null} state */
export const stateWords = (state) => (state === null ? "just ended" : (STATES[state] ?? ENDED[state] ?? state));

/** @param {string} state */
export const isEnd = (state) => state in ENDED;

/** @param {string} state */
export const isActive = (state) => ["starting", "running", "cancelling"].includes(state);

/** What a job asks for. @param {import("./job-types.js").Spec} spec */
export function askedWords(spec) {
  const { placement, gpus } = spec;
  const memory = placement.whole ? "all memory" : size(spec.mem_bytes);
  const kind = spec.device === "cpu" ? "the CPU" : gpus > 1 ? `each of ${gpus} devices of one host` : "one device";
  const more = [
    placement.exclusive && !placement.whole ? "alone there" : "",
    placement.models.length ? `of the type ${placement.models.join(" or ")}` : "",
    spec.pool ? `in the pool ${spec.pool}` : "",
    spec.time_limit_s === null ? "no time limit" : `at most ${duration(spec.time_limit_s)}`,
    spec.cap ? "" : "and it may use more memory than that",
  ];
  return [`${memory} on ${kind}`, ...more.filter(Boolean)].join(", ");
}

/** What the service says of the memory of a job, without options of the command line. @param {string} verdict */
export const verdictWords = (verdict) => verdict.replaceAll("--mem ", "");

/**
 * Whether a job was made by the form of the page: such a job has its code, and no directory.
 * @param {import("./job-types.js").Spec} spec
 */
export const isFromPage = (spec) => spec.cwd === "/" && Boolean(spec.snapshot);

/** The most that a job may use of its host, as the command line says it; "" without limits. @param {import("./job-types.js").Spec} spec */
export function limitWords({ cpus, cpu_mem_bytes: bytes }) {
  const parts = [cpus === null ? "" : plural(cpus, "processor"), bytes === null ? "" : `${size(bytes)} of host memory`].filter(Boolean);
  return parts.length ? `at most ${parts.join(", ")}` : "";
}

/** How a run came to its start. @type {Record<string, string>} */
const STARTS = {
  immediate: "nobody was ahead of it",
  backfill: "it fitted where jobs ahead of it did not",
  reserved: "the devices had been reserved for it",
};

/** @param {string | null | undefined} kind */
export const startWords = (kind) => (kind ? (STARTS[kind] ?? "") : "");

/** What a wait was for. @type {Record<string, string>} */
const WAITS = {
  memory: "for a device",
  device: "for a device that may run it",
  slots: "for a device",
  reservation: "for a device",
  drained: "for a device",
  silent: "for a device",
  limit: "for room under a limit",
  pause: "for the pause after a rebuild of the store",
  held: "on hold",
  lost_too_often: "on hold: its runs were lost too often",
  requeued_too_often: "on hold: its runs asked for a requeue too often",
  cannot_start: "on hold: no host could start it",
  dependency: "for other jobs",
  begin: "for its start time",
  retry: "for the pause before a retry",
  requeue: "for the pause before it goes on",
  array_limit: "for the concurrency limit of its array",
};

/** @param {string | null} reason */
export const waitWords = (reason) => (reason ? (WAITS[reason] ?? reason) : "for a device");

/** A command line, quoted for a shell. @param {string[]} argv */
export const commandOf = (argv) => argv.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`)).join(" ");
